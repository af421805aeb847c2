"""Graph neural networks on batches of fixed size, and a simulated IPU that runs them.

In the order of the flow: a dataset is measured and packed, batches of one shape come out, a model reads them, an
executor compiles its training step once and runs it. Models are in `popgeo.nn`, as PyG's are in `torch_geometric.nn`;
the three of the first pages are here as well. Everything is imported when it is first used; `__init__.pyi` says the
same to type checkers.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_NAMES = {
    "data": "FixedSizeCollater FixedSizeOptions FlatStore OverSizeStrategy Pad unpad",
    "datasets": "Molecules",
    "deploy.predictor": "Predictor",
    "deploy.program_file": "export load",
    "engine.compile_step": "compile_forward compile_step",
    "engine.loss_scaling": "LossScaling",
    "engine.step_options": "StepOptions",
    "ipu": "IpuTarget Options identity_loss inference_model training_model",
    "loader": "FixedSizeBatchSampler FixedSizeClusterLoader FixedSizeDataLoader FixedSizeEventLoader "
    "FixedSizeLinkLoader FixedSizeNeighborLoader FixedSizeStrategy",
    "nn": "GCN GIN KNNInteractionGraph RadiusInteractionGraph SchNet",
    "ops": "ScatterPlan cfconv gather scatter",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()} | {"bridges": "data"}
_FOLDERS = {
    *("capture", "compat", "convert", "data", "datasets", "deploy", "engine", "ipu", "loader", "native", "nn", "ops"),
    *("packing", "plots", "potentials", "sampling", "testing", "train"),
}
__all__ = [*_HOMES, "ipu", "nn", "ops", "packing", "sampling"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name in _FOLDERS:
        return import_module(f"popgeo.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'popgeo' has no attribute {name!r}")
    found = getattr(import_module(f"popgeo.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, for completion."""
    return [*globals(), *_HOMES, *_FOLDERS]
