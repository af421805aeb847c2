"""pyg-lib's samplers, products, searches and partitions over popgeo's: no part depends on the version of torch."""

from . import operators as operators
from . import ops, partition, sampler

__all__ = ["ops", "partition", "sampler"]
__version__ = "0.7.0"  # the version of pyg-lib with these names and arguments
