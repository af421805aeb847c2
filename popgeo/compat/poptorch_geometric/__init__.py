"""PopTorch Geometric's names over popgeo's loaders; `names.csv` lists their modules."""

from popgeo.compat.import_names import fill_module
from popgeo.compat.poptorch_geometric.types import register

__version__ = "3.3.0"  # the PopTorch Geometric with these names
__getattr__ = fill_module(__name__)
register()
