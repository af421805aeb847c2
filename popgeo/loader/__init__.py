"""Datasets in, batches of fixed shape out, epoch after epoch."""

from popgeo.loader.epoch import FixedSizeStrategy
from popgeo.loader.fixed_size import FixedSizeDataLoader

__all__ = ["FixedSizeDataLoader", "FixedSizeStrategy"]
