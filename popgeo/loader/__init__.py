"""Loaders that make batches of fixed shape from datasets, epoch after epoch."""

from typing import TYPE_CHECKING

from popgeo.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from popgeo.loader.batch_sampler import FixedSizeBatchSampler as FixedSizeBatchSampler
    from popgeo.loader.data_loader import FixedSizeDataLoader as FixedSizeDataLoader
    from popgeo.loader.device_feed import DeviceFeed as DeviceFeed
    from popgeo.loader.epoch_choices import EpochChoices as EpochChoices
    from popgeo.loader.event_loader import FixedSizeEventLoader as FixedSizeEventLoader
    from popgeo.loader.large.cluster_loader import FixedSizeClusterLoader as FixedSizeClusterLoader
    from popgeo.loader.large.disk_features import DiskFeatures as DiskFeatures
    from popgeo.loader.large.link_loader import FixedSizeLinkLoader as FixedSizeLinkLoader
    from popgeo.loader.large.neighbor_loader import FixedSizeNeighborLoader as FixedSizeNeighborLoader
    from popgeo.loader.large.partitioned_features import PartitionedFeatures as PartitionedFeatures
    from popgeo.loader.strategy import FixedSizeStrategy as FixedSizeStrategy
    from popgeo.loader.streaming import stream_batches as stream_batches
    from popgeo.loader.triple_loader import TripleBatch as TripleBatch
    from popgeo.loader.triple_loader import TripleLoader as TripleLoader
else:
    __getattr__, __dir__, __all__ = _lazy_names(__name__)
