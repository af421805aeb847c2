"""Datasets in, batches of fixed shape out, epoch after epoch."""

from popgeo.loader.epoch import FixedSizeStrategy
from popgeo.loader.fixed_size import FixedSizeDataLoader
from popgeo.loader.streaming import stream_batches

__all__ = ["FixedSizeDataLoader", "FixedSizeStrategy", "stream_batches"]
