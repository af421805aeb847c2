"""Batches of clusters of a large graph over PopTorch's `DataLoader`."""

from collections.abc import Callable
from typing import Any

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import pyg_cluster_loader
from popgeo.compat.poptorch_geometric.collate import CombinedBatchingCollater
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy


class FixedSizeClusterLoader(pyg_cluster_loader.FixedSizeClusterLoader, poptorch.DataLoader):
    """Loads clusters in batches whose shapes never change; see `pyg_cluster_loader.FixedSizeClusterLoader`.

    Args:
        cluster_data: PyG's `ClusterData`.
        fixed_size_options: Sizes of one batch, of two graphs.
        batch_size: Clusters of one batch.
        over_size_strategy: What happens to clusters that do not fit together.
        add_pad_masks: Whether batches carry masks.
        options: `poptorch.Options`, which say how many batches one item holds.
        kwargs: What `poptorch.DataLoader` takes.
    """

    def __init__(
        self,
        cluster_data: Any,
        fixed_size_options: FixedSizeOptions | None = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool | None = True,
        options: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            cluster_data,
            fixed_size_options,
            batch_size,
            over_size_strategy,
            add_pad_masks,
            options=poptorch.Options() if options is None else options,
            **kwargs,
        )

    def _create_collater(self, **arguments: Any) -> Callable[[list[int]], Any]:
        return CombinedBatchingCollater(super()._create_collater(**arguments), self._mini_batch_size)
