"""The names that old programs import: where `import poptorch` finds the modules of this folder, and their names."""

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

# Each is in popgeo.compat under its own name.
NAMES = ("poptorch", "poptorch_geometric", "torch_scatter", "torch_cluster", "popart", "popdist")

_PYG_EXTENSIONS = f"{__package__}.poptorch_geometric.pyg_extensions"
# What `multiprocessing` starts by `spawn` or `forkserver` inherits `sys.path`, where a finder of this process is lost.
_DOORS = str(Path(__file__).parent / "doors")


def enable(*, shadow: bool = False) -> None:
    """Makes `poptorch`, `poptorch_geometric`, `torch_scatter` and `torch_cluster` importable, which old programs need.

    A package of these names that is installed stays what `import` finds, unless `shadow` is set. From here on popgeo
    also is in for extensions of PyG that are not installed (searches, clusters, neighbors), until `disable` has
    been called as often as this: a library that enables and disables takes nothing away from the program around it.
    Worker processes of the program find the same names, however they are started.

    Args:
        shadow: Take popgeo's modules also where the real packages are installed.

    Raises:
        ValueError: the real package has been imported already, so that `shadow` would come too late.

    Example:
        >>> enable()
        >>> import poptorch
        >>> poptorch.__name__
        'popgeo.compat.poptorch'
        >>> disable()
    """
    ours = _taken()
    names = [name for name in NAMES if shadow or name in ours or not _is_installed(name)]
    imported = [name for name in names if name in sys.modules and name not in ours]
    if imported:
        raise ValueError(
            f"{imported[0]} of {getattr(sys.modules[imported[0]], '__file__', 'another place')} is imported already; "
            "call popgeo.compat.enable(shadow=True) before that import."
        )
    sys.meta_path.insert(0, _CompatFinder(tuple(names), shadow))
    _place_doors()
    if "poptorch_geometric" in names:
        # PyG's loaders that need extensions are used before that import too, in programs whose machine had them.
        importlib.import_module(_PYG_EXTENSIONS).stand_in()


def disable() -> None:
    """Takes back one `enable`; with the last of them `import poptorch` finds an installed package again, or none.

    Example:
        >>> enable()
        >>> disable()
    """
    if finders := _finders():
        sys.meta_path.remove(finders[0])
    _place_doors()
    ours = _taken()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {*NAMES} - ours and module.__name__.startswith("popgeo."):
            del sys.modules[name]
    if "poptorch_geometric" not in ours and _PYG_EXTENSIONS in sys.modules:
        sys.modules[_PYG_EXTENSIONS].take_back()


def _finders() -> list["_CompatFinder"]:
    return [finder for finder in sys.meta_path if isinstance(finder, _CompatFinder)]


def _taken() -> set[str]:
    """The names that are popgeo's now."""
    return {name for finder in _finders() for name in finder.names}


def _place_doors() -> None:
    """Lets the folder of doors stand where new processes find the same names in it: behind real packages, or before."""
    sys.path[:] = [folder for folder in sys.path if folder != _DOORS]
    if finders := _finders():
        sys.path.insert(0 if any(finder.shadow for finder in finders) else len(sys.path), _DOORS)


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    # A mere folder of that name is not a package.
    return spec is not None and spec.origin is not None and Path(spec.origin).parent != Path(_DOORS)


class _CompatFinder(MetaPathFinder):
    """Finds `poptorch.optim` as `popgeo.compat.poptorch.optim`: one module under two names, so classes are the same."""

    def __init__(self, names: tuple[str, ...], shadow: bool) -> None:
        self.names, self.shadow = names, shadow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_ours = fullname.partition(".")[0] in self.names
        real = importlib.util.find_spec(f"{__package__}.{fullname}") if is_ours else None
        if real is None:
            return None
        return ModuleSpec(
            fullname, _SameModule(real.name), origin=real.origin, is_package=real.submodule_search_locations is not None
        )


class _SameModule(Loader):
    """Hands out the module that is in this package, with its own name and spec."""

    def __init__(self, real_name: str) -> None:
        self.real_name = real_name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.real_name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        other_name = module.__spec__.name if module.__spec__ else self.real_name
        module.__spec__ = self._own_spec  # the import machinery has written the other name into it
        # What is imported under the real name only would be imported again, and would then take the place of a function
        # of its name, as in `ops.knn`.
        for name, part in list(sys.modules.items()):
            if name.startswith(f"{self.real_name}."):
                sys.modules.setdefault(other_name + name.removeprefix(self.real_name), part)


with Path(__file__).with_name("names.csv").open(newline="") as _file:
    _ROWS = list(csv.DictReader(_file))


def fill_module(name: str) -> Any:
    """Gives a module of this package, and the modules below it, the names that `names.csv` lists for them.

    A row has modules, the home of their names (a leading dot means this package), and the names: `new=old` if the
    home has another name for it, `new=.` for the home itself. A module without a file is made.

    Args:
        name: The module's full name.

    Returns:
        What Python asks for a name that the module does not have; type checkers look for it.

    Raises:
        AttributeError: by that function, always.
    """
    own = ((f"{__package__}.{module}", row) for row in _ROWS for module in row["modules"].split())
    for full, row in own:
        if f"{full}.".startswith(f"{name}."):
            module = sys.modules.get(full) or _made(full)
            home = importlib.import_module(row["home"], __package__)
            for given in row["names"].split():
                new, _, old = given.partition("=")
                setattr(module, new, home if old == "." else getattr(home, old or new))

    def missing(attribute: str) -> Any:
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    return missing


def _made(full: str) -> ModuleType:
    """The module of this name: of its file, or a new one that holds nothing yet."""
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    above, _, last = full.rpartition(".")
    module = sys.modules[full] = ModuleType(full, "Names of an old module, which `names.csv` lists.")
    module.__spec__ = ModuleSpec(full, None)
    vars(sys.modules[above]).setdefault(last, module)
    return module
