"""What stands under PopTorch's names on `sys.path` once a program has enabled them: processes started again inherit it.

Nothing of popgeo is imported before a name is asked for, so that other processes start as quickly as ever.
"""

import importlib
import sys


def open_door(name: str) -> None:
    """Enables popgeo's names in this process, and puts the module of this name in its door's place.

    Raises:
        ImportError: PyG asks, while it is imported itself, whether it has this extension; as popgeo imports PyG first,
            the answer is "no" in the process that enabled the names, too.
    """
    if "torch_geometric" in sys.modules and not hasattr(sys.modules["torch_geometric"], "__version__"):
        raise ImportError(f"{name} is popgeo's, and needs torch_geometric, which is still being imported.")
    del sys.modules[name]
    importlib.import_module("popgeo.compat").enable()
    importlib.import_module(name)
