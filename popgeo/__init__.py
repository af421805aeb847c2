"""Graph neural networks on batches of fixed size, and a simulated IPU that runs them.

In the order of the flow: a dataset is measured and packed, batches of one shape come out, a model reads them, an
executor compiles its training step once and runs it for ever. Models are in `popgeo.nn`, as PyG's are in
`torch_geometric.nn`; the three of the first pages are here as well.
"""

from importlib import import_module
from types import ModuleType

from popgeo import ipu as ipu
from popgeo import nn as nn
from popgeo import ops as ops
from popgeo import packing as packing
from popgeo import sampling as sampling
from popgeo.data import FixedSizeCollater as FixedSizeCollater
from popgeo.data import FixedSizeOptions as FixedSizeOptions
from popgeo.data import FlatStore as FlatStore
from popgeo.data import OverSizeStrategy as OverSizeStrategy
from popgeo.data import Pad as Pad
from popgeo.data import bridges as bridges
from popgeo.data import unpad as unpad
from popgeo.datasets import Molecules as Molecules
from popgeo.deploy.predictor import Predictor as Predictor
from popgeo.deploy.program_file import export as export
from popgeo.deploy.program_file import load as load
from popgeo.engine.compile_step import compile_forward as compile_forward
from popgeo.engine.compile_step import compile_step as compile_step
from popgeo.engine.loss_scaling import LossScaling as LossScaling
from popgeo.engine.step_options import StepOptions as StepOptions
from popgeo.ipu import IpuTarget as IpuTarget
from popgeo.ipu import Options as Options
from popgeo.ipu import identity_loss as identity_loss
from popgeo.ipu import inference_model as inference_model
from popgeo.ipu import training_model as training_model
from popgeo.loader import FixedSizeBatchSampler as FixedSizeBatchSampler
from popgeo.loader import FixedSizeClusterLoader as FixedSizeClusterLoader
from popgeo.loader import FixedSizeDataLoader as FixedSizeDataLoader
from popgeo.loader import FixedSizeEventLoader as FixedSizeEventLoader
from popgeo.loader import FixedSizeLinkLoader as FixedSizeLinkLoader
from popgeo.loader import FixedSizeNeighborLoader as FixedSizeNeighborLoader
from popgeo.loader import FixedSizeStrategy as FixedSizeStrategy
from popgeo.nn import GCN as GCN
from popgeo.nn import GIN as GIN
from popgeo.nn import KNNInteractionGraph as KNNInteractionGraph
from popgeo.nn import RadiusInteractionGraph as RadiusInteractionGraph
from popgeo.nn import SchNet as SchNet
from popgeo.ops import ScatterPlan as ScatterPlan
from popgeo.ops import cfconv as cfconv
from popgeo.ops import gather as gather
from popgeo.ops import scatter as scatter

__version__ = "0.2.0"


def __getattr__(name: str) -> ModuleType:
    """The folders that a training does not need, such as `popgeo.testing`, are imported when they are first named."""
    if name in ("compat", "convert", "deploy", "plots", "potentials", "testing"):
        return import_module(f"popgeo.{name}")
    raise AttributeError(f"module 'popgeo' has no attribute {name!r}")
