"""Datasets in, batches of fixed shape out, epoch after epoch."""

from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.loader.strategy import FixedSizeStrategy
from popgeo.loader.streaming import stream_batches

__all__ = ["FixedSizeDataLoader", "FixedSizeStrategy", "stream_batches"]
