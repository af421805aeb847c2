"""PopTorch Geometric's names over popgeo's loaders, for programs that were written for it; see `names.csv`."""

from popgeo.compat.import_names import fill_module
from popgeo.compat.poptorch_geometric.types import register

__version__ = "3.3.0"  # the PopTorch Geometric whose names these are
__getattr__ = fill_module(__name__)
register()
