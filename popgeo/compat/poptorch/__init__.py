"""PopTorch's names over popgeo; `names.csv` lists their modules."""

from popgeo.compat.import_names import fill_module

__version__ = "3.3.0"  # the PopTorch with these names
__getattr__ = fill_module(__name__)
