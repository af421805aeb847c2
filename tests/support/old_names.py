"""The names that `compat.enable` gives out, taken back however often a program has enabled them."""

import sys

from popgeo.compat import disable, import_names


def take_names_back() -> None:
    while any(isinstance(finder, import_names._CompatFinder) for finder in sys.meta_path):
        disable()
