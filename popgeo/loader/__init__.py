"""Datasets in, batches of fixed shape out, epoch after epoch."""

from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.loader.device_feed import DeviceFeed
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.event_loader import FixedSizeEventLoader
from popgeo.loader.large import FixedSizeClusterLoader, FixedSizeLinkLoader, FixedSizeNeighborLoader
from popgeo.loader.strategy import FixedSizeStrategy
from popgeo.loader.streaming import stream_batches
from popgeo.loader.triple_loader import TripleBatch, TripleLoader
from popgeo.loader.waiting import Waiting

__all__ = [
    "DeviceFeed",
    "EpochChoices",
    "FixedSizeClusterLoader",
    "FixedSizeDataLoader",
    "FixedSizeEventLoader",
    "FixedSizeLinkLoader",
    "FixedSizeNeighborLoader",
    "FixedSizeStrategy",
    "TripleBatch",
    "TripleLoader",
    "Waiting",
    "stream_batches",
]
