"""Datasets in, batches of fixed shape out, epoch after epoch."""

from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.loader.event_loader import FixedSizeEventLoader
from popgeo.loader.large import FixedSizeClusterLoader, FixedSizeLinkLoader, FixedSizeNeighborLoader, LoaderChoices
from popgeo.loader.strategy import FixedSizeStrategy
from popgeo.loader.streaming import stream_batches
from popgeo.loader.triple_loader import TripleBatch, TripleLoader

__all__ = [
    "FixedSizeClusterLoader",
    "FixedSizeDataLoader",
    "FixedSizeEventLoader",
    "FixedSizeLinkLoader",
    "FixedSizeNeighborLoader",
    "FixedSizeStrategy",
    "LoaderChoices",
    "TripleBatch",
    "TripleLoader",
    "stream_batches",
]
