"""Names of a package that are imported when they are first used: what a program does not use costs no time."""

import linecache
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_IMPORT = re.compile(r"^ +from (\S+) import (\w+) as \2$", flags=re.MULTILINE)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package whose `__init__.py` imports only for type checkers.

    Its public names are those of the lines `from popgeo.x.y import Z as Z` in its source. Modules of the package are
    found by their names as well.

    Example:
        >>> import popgeo.nn
        >>> "GCN" in popgeo.nn.__all__, popgeo.nn.GCN.__module__
        (True, 'popgeo.nn.models.gcn')
    """
    module: Any = sys.modules[package]
    source = "".join(linecache.getlines(module.__file__, vars(module)))  # also in an archive
    homes = {name: home for home, name in _IMPORT.findall(source)}

    def find(name: str) -> Any:
        """A public name or a module of the package."""
        try:
            found = getattr(import_module(homes[name]), name) if name in homes else import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module) from None
        setattr(module, name, found)
        return found

    return find, lambda: sorted({*vars(module), *homes}), list(homes)
