# SPDX-License-Identifier: Apache-2.0
"""Imports pyACL. The module :mod:`crossmem_ascend.runtime` describes pyACL's interface."""

from importlib import import_module
from typing import cast

from crossmem.errors import BackendUnavailableError
from crossmem.guards import clause
from crossmem_ascend.errors import BACKEND
from crossmem_ascend.runtime import Acl

__all__ = ["INSTALL_HINT", "import_pyacl"]

INSTALL_HINT = (
    "install CANN and the driver, and run `source set_env.sh` of the CANN toolkit: Python "
    "then finds `acl` and the libraries"
)


def import_pyacl() -> Acl:
    """Return the module ``acl``.

    Raises
    ------
    BackendUnavailableError
        pyACL is not installed, its libraries are not found, or Python finds another module
        ``acl``.
    """
    try:
        module = import_module("acl")
    except ImportError as error:
        raise BackendUnavailableError(
            f"pyACL cannot be imported: {clause(str(error))}",
            hint=INSTALL_HINT,
            backend=BACKEND,
        ) from error
    if not hasattr(module, "rt"):
        raise BackendUnavailableError(
            clause(f"{module!r} is not pyACL: it lacks acl.rt"),
            hint=INSTALL_HINT,
            backend=BACKEND,
        )
    return cast("Acl", module)
