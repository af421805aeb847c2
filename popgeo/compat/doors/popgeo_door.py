"""Imports of PopTorch's names in processes that an enabled program spawns, which inherit `sys.path`.

popgeo is imported only when a program imports one of these names, so other processes start as fast as before.
"""

import importlib
import sys


def open_door(name: str) -> None:
    """Enable popgeo's names in this process, and import the module of this name again."""
    del sys.modules[name]
    importlib.import_module("popgeo.compat").enable()
    importlib.import_module(name)
