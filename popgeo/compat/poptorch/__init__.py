"""PopTorch's names over popgeo, for programs that were written for it; `names.csv` lists their homes."""

from popgeo.compat.import_names import fill_module

__version__ = "3.3.0"  # the PopTorch whose names these are
__getattr__ = fill_module(__name__)
