"""PopTorch Geometric's names over popgeo's loaders, for programs that were written for it; see `names.csv`."""

from popgeo.compat.fill_module import fill_module
from popgeo.compat.poptorch_geometric.override import register

__version__ = "3.3.0"  # the PopTorch Geometric whose names these are
__getattr__ = fill_module(__name__)
register()
