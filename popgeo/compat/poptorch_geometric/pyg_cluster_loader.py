"""Batches of clusters of a large graph over torch's `DataLoader`."""

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.loader import ClusterLoader

from popgeo.compat.poptorch_geometric.collate import FixedSizeCollater
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.older_releases import clusters_in_todays_words, with_older_words
from popgeo.data.trim import OverSizeStrategy

_NOT_TAKEN = {"collate_fn", "batch_sampler", "exclude_keys"}


class FixedSizeClusterLoader(torch.utils.data.DataLoader[Any]):
    """Loads clusters with the edges inside and between them, in batches whose shapes never change.

    `popgeo.loader.FixedSizeClusterLoader` is the quicker one, and makes clusters by itself.

    Args:
        cluster_data: PyG's `ClusterData`.
        fixed_size_options: Sizes of a batch, of two graphs: one real, one of padding.
        batch_size: Clusters of a batch.
        over_size_strategy: What happens to clusters that do not fit together.
        add_pad_masks: Whether batches carry masks.
        kwargs: What torch's `DataLoader` takes, such as `shuffle`; `num_nodes` and `collater_args` of release 3.2 are
            understood in the place of `fixed_size_options` and `over_size_strategy`.

    Raises:
        ValueError: sizes are missing, or given twice.
        AssertionError: `num_graphs` is not 2, or an argument is not taken.
    """

    @with_older_words(clusters_in_todays_words)
    def __init__(
        self,
        cluster_data: Any,
        fixed_size_options: FixedSizeOptions | None = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool | None = True,
        **kwargs: Any,
    ) -> None:
        if fixed_size_options is None:
            raise ValueError(f"{type(self).__name__} needs the sizes of a batch; pass fixed_size_options.")
        if fixed_size_options.num_graphs != 2:
            raise AssertionError(
                "The number of graphs in a batch specified by the fixed sized options must be 2 when using the "
                f"{type(self).__name__}, currently it is set to {fixed_size_options.num_graphs}."
            )
        if odd := _NOT_TAKEN & {*kwargs}:
            raise AssertionError(f"`{type(self).__name__}` does not support the following arguments: {sorted(odd)}.")
        self.cluster_data = cluster_data
        self._mini_batch_size = batch_size
        collate = self._create_collater(fixed_size_options, over_size_strategy, add_pad_masks)
        super().__init__(dataset=range(len(cluster_data)), batch_size=batch_size, collate_fn=collate, **kwargs)  # type: ignore[arg-type]

    def _create_collater(self, *args: Any) -> Callable[[list[int]], Any]:
        return _ClustersTogether(self.cluster_data, FixedSizeCollater.of_loader(*args))


class _ClustersTogether:
    """Makes a batch of the numbers of clusters."""

    def __init__(self, cluster_data: Any, collate: FixedSizeCollater) -> None:
        self.together, self.collate = ClusterLoader(cluster_data)._collate, collate

    def __call__(self, clusters: list[int]) -> Any:
        return self.collate([self.together(clusters)])
