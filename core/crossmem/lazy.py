# SPDX-License-Identifier: Apache-2.0
"""Public names whose modules are imported at the first use, so that the package imports fast.

Type checkers do not see such names, so the package also imports them under ``TYPE_CHECKING``.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from crossmem.forks import MODULES

__all__ = ["names"]


def names(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Parameters
    ----------
    modules
        The names that the package takes from a module. The key is the module.
    """
    sources = {name: module for module, some in modules.items() for name in some}
    own = vars(sys.modules[package])

    def load(name: str) -> object:
        if name not in sources:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg, name=name, obj=sys.modules[package])
        # The value is stored in the package, where Python finds it next time without this function.
        with MODULES:
            own[name] = value = getattr(import_module(sources[name]), name)
        return value

    return load, lambda: sorted({*own, *sources})
