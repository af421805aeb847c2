"""Lazy public names of a package: each is imported when it is first used, so unused names cost no time.

A renamed object keeps its old name for two minor versions, with a warning.
"""

import linecache
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# Old name, new name, and the version in which the old name ends. A test fails when that version has come.
RENAMED = {
    "popgeo.loader.LoaderChoices": ("popgeo.loader.EpochChoices", "0.3"),
    "popgeo.nn.Calculator": ("popgeo.deploy.Calculator", "0.3"),
    "popgeo.nn.EmbeddingCut": ("popgeo.nn.Cut", "0.3"),
    "popgeo.nn.Side": ("popgeo.nn.TripleEnd", "0.3"),
}
_IMPORT = re.compile(r"^ *from (\S+) import (\w+) as \2$", flags=re.MULTILINE)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package with lazy public names.

    The public names are listed as `from popgeo.x.y import Z as Z`, which type checkers read, too: in the package's
    `__init__.pyi`, or under `if TYPE_CHECKING:` in its `__init__.py`. The package's modules are attributes as well.

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
        """Import a public name or a module of the package."""
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
    """Return a renamed object by its old name, a key of `RENAMED`, with a FutureWarning."""
    new, end = RENAMED[old]
    warnings.warn(f"{old} is now {new}; the old name ends with popgeo {end}.", FutureWarning, stacklevel=3)
    module, _, name = new.rpartition(".")
    return getattr(import_module(module), name)
