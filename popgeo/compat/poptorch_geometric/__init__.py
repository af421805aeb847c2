"""PopTorch Geometric's names over popgeo's loaders, for programs that were written for it."""

import sys

from popgeo.compat.poptorch_geometric import collate as _collate
from popgeo.compat.poptorch_geometric.collate import make_exclude_keys as make_exclude_keys
from popgeo.compat.poptorch_geometric.dataloader import FixedSizeDataLoader as FixedSizeDataLoader
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions as FixedSizeOptions
from popgeo.compat.poptorch_geometric.override import register as _register
from popgeo.compat.poptorch_geometric.types import PyGArgsParser as PyGArgsParser
from popgeo.compat.poptorch_geometric.utils import TrainingStepper as TrainingStepper
from popgeo.compat.poptorch_geometric.utils import set_aggregation_dim_size as set_aggregation_dim_size
from popgeo.data.trim import OverSizeStrategy as OverSizeStrategy
from popgeo.loader.strategy import FixedSizeStrategy as FixedSizeStrategy

__version__ = "3.3.0"  # the PopTorch Geometric whose names these are

sys.modules[f"{__name__}.pyg_collate"] = _collate  # the module that programs import PyG's collater from
_register()
