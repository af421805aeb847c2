"""Imports of old names: `import poptorch` finds the modules of this folder, with the names in `names.csv`."""

import csv
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from popgeo import extension_path

# Modules of popgeo.compat with these names.
NAMES = ("poptorch", "poptorch_geometric", "popart", "popdist")

_PYG_EXTENSIONS = f"{__package__}.poptorch_geometric.pyg_extensions"
# Processes that `multiprocessing` spawns inherit `sys.path`, but not `sys.meta_path`.
_DOORS = str(Path(__file__).parent / "doors")


def enable(*, shadow: bool = False) -> None:
    """Make `poptorch`, `poptorch_geometric`, `popart`, `popdist` and PyG's extensions importable.

    Installed packages with these names keep precedence unless `shadow` is set. PyG's extensions are the packages of
    `popgeo.extensions`. `disable` undoes one call, so calls of a library and of its program may be nested. The
    program's worker processes find the same names.

    Args:
        shadow: Whether popgeo's modules replace installed packages.

    Raises:
        ValueError: An installed package has already been imported, so that `shadow` comes too late.

    Example:
        >>> enable()
        >>> import poptorch
        >>> poptorch.__name__
        'popgeo.compat.poptorch'
        >>> disable()
    """
    ours = _our_names()
    names = [name for name in NAMES if shadow or name in ours or not _is_installed(name)]
    imported = [name for name in names if name in sys.modules and name not in ours]
    if imported:
        raise ValueError(
            f"{imported[0]} is already imported from {getattr(sys.modules[imported[0]], '__file__', 'another place')}; "
            "call popgeo.compat.enable(shadow=True) before that import."
        )
    extension_path.provide(shadow=shadow)
    sys.meta_path.insert(0, _CompatFinder(tuple(names), shadow))
    _update_path()
    if "poptorch_geometric" in names:
        # Programs may use PyG's extensions before they import poptorch_geometric.
        importlib.import_module(_PYG_EXTENSIONS).stand_in()


def disable() -> None:
    """Undo one call of `enable`. After the last one, `import poptorch` finds an installed package again, or none.

    Example:
        >>> enable()
        >>> disable()
    """
    if finders := _finders():
        sys.meta_path.remove(finders[0])
        extension_path.withdraw()
    _update_path()
    ours = _our_names()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {*NAMES} - ours and module.__name__.startswith("popgeo."):
            del sys.modules[name]
    if "poptorch_geometric" not in ours and _PYG_EXTENSIONS in sys.modules:
        sys.modules[_PYG_EXTENSIONS].take_back()


def _finders() -> list["_CompatFinder"]:
    return [finder for finder in sys.meta_path if isinstance(finder, _CompatFinder)]


def _our_names() -> set[str]:
    """Return the names that popgeo provides now."""
    return {name for finder in _finders() for name in finder.names}


def _update_path() -> None:
    """Put the folder of doors into `sys.path` for new processes: last, or first if a finder shadows packages."""
    sys.path[:] = [folder for folder in sys.path if folder != _DOORS]
    if finders := _finders():
        sys.path.insert(0 if any(finder.shadow for finder in finders) else len(sys.path), _DOORS)


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    # A folder without __init__.py is not a package.
    return spec is not None and spec.origin is not None and Path(spec.origin).parent != Path(_DOORS)


class _CompatFinder(MetaPathFinder):
    """Finder that maps `poptorch.optim` to `popgeo.compat.poptorch.optim`: one module with two names."""

    def __init__(self, names: tuple[str, ...], shadow: bool) -> None:
        self.names, self.shadow = names, shadow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of this package, or None for other modules."""
        is_ours = fullname.partition(".")[0] in self.names
        real = importlib.util.find_spec(f"{__package__}.{fullname}") if is_ours else None
        if real is None:
            return None
        return ModuleSpec(
            fullname, _SameModule(real.name), origin=real.origin, is_package=real.submodule_search_locations is not None
        )


class _SameModule(Loader):
    """Loader that returns an existing module of this package."""

    def __init__(self, real_name: str) -> None:
        self.real_name = real_name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of this package."""
        module = importlib.import_module(self.real_name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, and register its submodules under the other name."""
        other_name = module.__spec__.name if module.__spec__ else self.real_name
        module.__spec__ = self._own_spec  # the import machinery has replaced it
        # A submodule imported under its real name only would be imported again, and would replace the function of its
        # name, such as `ops.knn`.
        for name, part in list(sys.modules.items()):
            if name.startswith(f"{self.real_name}."):
                sys.modules.setdefault(other_name + name.removeprefix(self.real_name), part)


with Path(__file__).with_name("names.csv").open(newline="") as _file:
    _ROWS = list(csv.DictReader(_file))


def fill_module(name: str) -> Any:
    """Add the names in `names.csv` to a module of this package and its submodules.

    A row has modules, the home of the names (a leading dot means this package), and the names. `new=old` renames a
    name, and `new=.` is the home itself. A module without a file is created.

    Args:
        name: Full name of the module.

    Returns:
        A module's `__getattr__`, which always raises AttributeError. Type checkers look for it.

    Raises:
        AttributeError: Raised by the returned function, always.
    """
    own = ((f"{__package__}.{module}", row) for row in _ROWS for module in row["modules"].split())
    for full, row in own:
        if f"{full}.".startswith(f"{name}."):
            module = sys.modules.get(full) or _module(full)
            home = importlib.import_module(row["home"], __package__)
            for given in row["names"].split():
                new, _, old = given.partition("=")
                setattr(module, new, home if old == "." else getattr(home, old or new))

    def missing(attribute: str) -> Any:
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    return missing


def _module(full: str) -> ModuleType:
    """Import the module of a name, or create an empty one if it has no file."""
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    above, _, last = full.rpartition(".")
    module = sys.modules[full] = ModuleType(full, "Module with the names that `names.csv` lists.")
    module.__spec__ = ModuleSpec(full, None)
    vars(sys.modules[above]).setdefault(last, module)
    return module
