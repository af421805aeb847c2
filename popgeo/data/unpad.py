"""Takes padding away again."""

from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data.pad import unpad_graph
from popgeo.data.super_batch import split


def unpad(batch: Batch | Data | HeteroData) -> list[Data | HeteroData]:
    """The real graphs of a batch of fixed size, without padding.

    Args:
        batch: A batch that carries its masks, also a joined one, or one graph grown by `Pad(add_pad_mask=True)`.

    Raises:
        ValueError: there are no masks.

    Example:
        >>> import torch
        >>> from popgeo.data import FixedSizeCollater, FixedSizeOptions
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> unpad(FixedSizeCollater(FixedSizeOptions(9, 4, 3), add_masks_to_batch=True)(graphs))
        [Data(x=[2, 1], edge_index=[2, 1]), Data(x=[3, 1], edge_index=[2, 1])]
    """
    if not isinstance(batch, Batch):
        return [unpad_graph(batch)]
    if "graphs_mask" not in batch:
        raise ValueError(
            "The batch has no graphs_mask, so its padding cannot be told from its graphs. Make it with "
            "add_pad_masks=True (FixedSizeDataLoader) or add_masks_to_batch=True (FixedSizeCollater)."
        )
    if batch.graphs_mask.numel() > batch.num_graphs:
        return [graph for part in split(batch) for graph in unpad(part)]
    return [batch.get_example(i) for i in range(int(batch.graphs_mask.sum()))]
