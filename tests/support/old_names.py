"""The removal of the names that `compat.enable` installed, any number of times."""

import sys

from popgeo.compat import disable, import_names


def take_names_back() -> None:
    while any(isinstance(finder, import_names._CompatFinder) for finder in sys.meta_path):
        disable()
