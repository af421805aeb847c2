"""pyg-lib's samplers, products, searches and partitions over popgeo's: no part depends on the version of torch."""

from . import operators as operators  # imports `ops`, `partition` and `sampler`, too

__version__ = "0.7.0"  # the version of pyg-lib with these names and arguments
