"""PyG's collater of graphs, made without naming a dataset."""

from collections.abc import Sequence

from torch_geometric.loader.dataloader import Collater as PyGCollater


class Collater(PyGCollater):
    """Makes one `Batch` of a list of graphs.

    Args:
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> Collater(exclude_keys=["y"])([Data(x=torch.ones(2, 1), y=torch.ones(1))] * 2)
        DataBatch(x=[4, 1], batch=[4], ptr=[3])
    """

    def __init__(self, follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None) -> None:
        super().__init__([], list(follow_batch or ()), list(exclude_keys or ()))
