"""The path to popgeo's versions of PyG's extensions, which are importable under their own names while it is in use."""

import contextlib
import importlib
import importlib.util
import logging
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from popgeo.replaced import replaced

NAMES = ("torch_scatter", "torch_cluster", "pyg_lib")
# Processes that `multiprocessing` spawns inherit `sys.path`.
FOLDER = str(Path(__file__).parent / "extensions")

_SHADOWS: list[bool] = []  # one entry per call of `provide` that was not withdrawn
_SWITCHES = contextlib.ExitStack()  # closing it restores PyG's switches


def provide(*, shadow: bool = False) -> None:
    """Make popgeo's versions of PyG's extensions importable, and switch them on in PyG; `withdraw` undoes one call.

    Args:
        shadow: Whether they replace installed packages.

    Raises:
        ValueError: An installed package has already been imported, so that `shadow` comes too late.

    Example:
        >>> import torch
        >>> provide()
        >>> import torch_cluster
        >>> torch_cluster.grid_cluster(torch.tensor([[0.0], [7.0]]), torch.tensor([5.0]))
        tensor([0, 1])
        >>> withdraw()
    """
    late = [name for name in NAMES if shadow and name in sys.modules and not _is_in_folder(sys.modules[name].__spec__)]
    if late:
        raise ValueError(
            f"{late[0]} is already imported from {getattr(sys.modules[late[0]], '__file__', 'another place')}; "
            "ask for popgeo's version before that import."
        )
    _SHADOWS.append(shadow)
    _update()


def withdraw() -> None:
    """Undo one call of `provide`. After the last one, the names lead to installed packages again, or to none.

    Example:
        >>> provide()
        >>> withdraw()
    """
    if _SHADOWS:
        _SHADOWS.pop()
    _update()


def engines() -> dict[str, str]:
    """Return for each of PyG's extensions which package serves it: popgeo, an installed package, or none.

    Example:
        >>> list(engines())
        ['torch_scatter', 'torch_cluster', 'pyg_lib']
    """
    return {name: _engine(name) for name in NAMES}


def log_engines() -> None:
    """Write one line about `engines` to the log `popgeo.extensions`, as a warning, so that it is seen by default."""
    served = ", ".join(f"{name}: {engine}" for name, engine in engines().items())
    logging.getLogger("popgeo.extensions").warning("popgeo.extensions: %s", served)


def keep_relations_apart() -> None:
    """Make PyG's `RGCNConv` aggregate each relation alone, as it does without pyg-lib, until PyG's switches change.

    With `segment_matmul` it takes the mean or the maximum over the edges of all relations.

    Example:
        >>> import torch_geometric
        >>> keep_relations_apart()
        >>> sizes = dict(num_segments=999, max_segment_size=9, in_channels=8, out_channels=8)
        >>> torch_geometric.backend.use_segment_matmul_heuristic(**sizes)
        False
    """
    from torch_geometric import backend  # PyG is optional, and is being imported now

    _SWITCHES.enter_context(replaced(backend, "use_segment_matmul_heuristic", _never))


def _never(num_segments: int, max_segment_size: int, in_channels: int, out_channels: int) -> bool:
    return False  # a function with PyG's arguments, since TorchScript compiles it with the layer


def _engine(name: str) -> str:
    module = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if module is None else module.__spec__
    if spec is None or spec.origin is None:  # a folder without __init__.py is not a package
        return "not installed"
    return "popgeo" if _is_in_folder(spec) else f"installed in {Path(spec.origin).parent}"


def _is_in_folder(spec: ModuleSpec | None) -> bool:
    return spec is not None and (spec.origin or "").startswith(FOLDER)


def _update() -> None:
    """Put the folder into `sys.path`: last, or first if it shadows packages. Forget modules without it."""
    sys.path[:] = [folder for folder in sys.path if folder != FOLDER]
    if _SHADOWS:
        sys.path.insert(0 if any(_SHADOWS) else len(sys.path), FOLDER)
    importlib.invalidate_caches()
    served = {name for name in NAMES if _is_in_folder(PathFinder.find_spec(name))}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {*NAMES} - served and _is_in_folder(module.__spec__):
            del sys.modules[name]
    _SWITCHES.close()
    # PyG 2.8 warns that it does not need torch_cluster. A program may still need it.
    warnings.filterwarnings("ignore", "'torch-cluster' is no longer necessary", DeprecationWarning)
    if _SHADOWS and hasattr(sys.modules.get("torch_geometric"), "__version__"):
        _switch_on_in_pyg()


def _switch_on_in_pyg() -> None:
    """Give PyG, which was imported before, the switches and modules that it would find if it were imported now."""
    typing: Any = sys.modules["torch_geometric.typing"]
    now = ModuleType(typing.__name__)
    typing.__spec__.loader.exec_module(now)
    changed = {name: value for name, value in vars(now).items() if name.startswith("WITH_") or name in NAMES}
    for module in [part for name, part in sys.modules.items() if name.partition(".")[0] == "torch_geometric"]:
        for name, value in changed.items():
            before = vars(typing).get(name)
            if value is not before and vars(module).get(name, value) is before and module is not typing:
                _SWITCHES.enter_context(replaced(module, name, value))
    for name, value in changed.items():
        if vars(typing).get(name) is not value:
            _SWITCHES.enter_context(replaced(typing, name, value))
    layer: Any = sys.modules.get("torch_geometric.nn.conv.spline_conv")  # it imports functions, not a switch
    if now.WITH_SPLINE and layer is not None and layer.spline_basis is None:
        for name in ("spline_basis", "spline_weighting"):
            _SWITCHES.enter_context(replaced(layer, name, getattr(now.pyg_lib.ops, name)))
