"""Graph neural networks on batches of fixed size, and a simulated IPU that runs them.

In the order of the flow: a dataset is measured and packed, batches of one shape come out, a model reads them, an
executor compiles its training step once and runs it for ever. Models are in `popgeo.nn`, as PyG's are in
`torch_geometric.nn`; the three of the first pages are here as well.
"""

from popgeo import ipu, nn, ops, packing, sampling
from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, OverSizeStrategy, Pad, bridges, unpad
from popgeo.datasets import Molecules
from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.loss_scaling import LossScaling
from popgeo.engine.step_options import StepOptions
from popgeo.ipu import IpuTarget, Options, identity_loss, inference_model, training_model
from popgeo.loader import (
    FixedSizeClusterLoader,
    FixedSizeDataLoader,
    FixedSizeEventLoader,
    FixedSizeLinkLoader,
    FixedSizeNeighborLoader,
    FixedSizeStrategy,
)
from popgeo.nn import GCN, GIN, KNNInteractionGraph, RadiusInteractionGraph, SchNet
from popgeo.ops import ScatterPlan, cfconv, gather, scatter

__all__ = [
    "GCN",
    "GIN",
    "FixedSizeClusterLoader",
    "FixedSizeCollater",
    "FixedSizeDataLoader",
    "FixedSizeEventLoader",
    "FixedSizeLinkLoader",
    "FixedSizeNeighborLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "FlatStore",
    "IpuTarget",
    "KNNInteractionGraph",
    "LossScaling",
    "Molecules",
    "Options",
    "OverSizeStrategy",
    "Pad",
    "RadiusInteractionGraph",
    "ScatterPlan",
    "SchNet",
    "StepOptions",
    "bridges",
    "cfconv",
    "compile_forward",
    "compile_step",
    "gather",
    "identity_loss",
    "inference_model",
    "ipu",
    "nn",
    "ops",
    "packing",
    "sampling",
    "scatter",
    "training_model",
    "unpad",
]
__version__ = "0.1.0"
