# SPDX-License-Identifier: Apache-2.0
"""Lets a package import each of its modules at the first use of a public name of the module.

So the import of the package itself is fast. Type checkers do not see names that ``__getattr__``
provides. Therefore the package also imports these names under ``if TYPE_CHECKING``.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from crossmem.forks import MODULES

__all__ = ["names"]


def names(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` for a package (PEP 562).

    Parameters
    ----------
    package
        The name of the package.
    modules
        The names that the package takes from each module. The key is the module's name.
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
