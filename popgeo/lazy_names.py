"""Names of a package that are imported when they are first used: what a program does not use costs no time.

Names that have changed are found by their old names for two minor versions, with a warning.
"""

import linecache
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# The old name, the new one, and the version in which the old one ends. A test fails when that version has come.
RENAMED = {
    "popgeo.loader.LoaderChoices": ("popgeo.loader.EpochChoices", "0.3"),
    "popgeo.nn.Calculator": ("popgeo.deploy.Calculator", "0.3"),
    "popgeo.nn.EmbeddingCut": ("popgeo.nn.Cut", "0.3"),
}
_IMPORT = re.compile(r"^ *from (\S+) import (\w+) as \2$", flags=re.MULTILINE)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package whose public names are imported when they are used.

    They are the names in the lines `from popgeo.x.y import Z as Z`, which type checkers read: in its `__init__.pyi`, or
    else under `if TYPE_CHECKING:` in its `__init__.py`. Modules of the package are found by their names as well.

    Example:
        >>> import popgeo.nn
        >>> "GCN" in popgeo.nn.__all__, popgeo.nn.GCN.__module__
        (True, 'popgeo.nn.models.gcn')
    """
    module: Any = sys.modules[package]
    stub = Path(module.__file__).with_suffix(".pyi")
    source = stub.read_text() if stub.exists() else "".join(linecache.getlines(module.__file__, vars(module)))
    homes = {name: home for home, name in _IMPORT.findall(source)}

    def find(name: str) -> Any:
        """A public name or a module of the package."""
        if f"{package}.{name}" in RENAMED:
            return _by_old_name(f"{package}.{name}")
        home = homes.get(name, package)
        try:
            found = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module) from None
        setattr(module, name, found)
        return found

    return find, lambda: sorted({*vars(module), *homes}), [name for name in homes if homes[name] != package]


def _by_old_name(old: str) -> Any:
    """The object that has a new name now; `old` is in `RENAMED`. Gives a FutureWarning."""
    new, end = RENAMED[old]
    warnings.warn(f"{old} is now {new}; the old name ends with popgeo {end}.", FutureWarning, stacklevel=3)
    module, _, name = new.rpartition(".")
    return getattr(import_module(module), name)
