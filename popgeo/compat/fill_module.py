"""The names of old modules: `names.csv` lists for each module the files of popgeo that its names come from."""

import csv
import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

with Path(__file__).with_name("names.csv").open(newline="") as _file:
    _ROWS = list(csv.DictReader(_file))


def fill_module(name: str) -> Any:
    """Gives a module of this package, and the modules below it, the names that `names.csv` lists for them.

    A row has modules, the home of their names (a leading dot stands for this package), and the names: `new=old` if the
    home has another name for it, `new=.` for the home itself, `*` for all public names. A module without a file is
    made.

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
            every = getattr(home, "__all__", None) or [one for one in vars(home) if not one.startswith("_")]
            for given in every if row["names"] == "*" else row["names"].split():
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
