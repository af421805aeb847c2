"""Imports of PopTorch's names in processes that an enabled program spawns, which inherit `sys.path`.

popgeo is imported only when a program imports one of these names, so other processes start as fast as before.
"""

import importlib
import sys


def open_door(name: str) -> None:
    """Enable popgeo's names in this process, and import the module of this name again.

    Raises:
        ImportError: PyG looks for this extension while it is being imported. The answer is "not installed", as in the
            process that enabled the names, where popgeo imports PyG first.
    """
    if "torch_geometric" in sys.modules and not hasattr(sys.modules["torch_geometric"], "__version__"):
        raise ImportError(f"{name} of popgeo needs torch_geometric, which is still being imported.")
    del sys.modules[name]
    importlib.import_module("popgeo.compat").enable()
    importlib.import_module(name)
