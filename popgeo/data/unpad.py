"""Takes a batch of fixed size apart into the real graphs that it was made of."""

from torch_geometric.data import Batch, Data, HeteroData


def unpad(batch: Batch) -> list[Data | HeteroData]:
    """The real graphs of a batch, without padding.

    Args:
        batch: A batch of fixed size that carries its masks.

    Raises:
        ValueError: the batch has no `graphs_mask`.

    Example:
        >>> import torch
        >>> from popgeo.data import FixedSizeCollater, FixedSizeOptions
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> unpad(FixedSizeCollater(FixedSizeOptions(9, 4, 3), add_masks_to_batch=True)(graphs))
        [Data(x=[2, 1], edge_index=[2, 1]), Data(x=[3, 1], edge_index=[2, 1])]
    """
    if "graphs_mask" not in batch:
        raise ValueError(
            "The batch has no graphs_mask, so its padding cannot be told from its graphs. Make it with "
            "add_pad_masks=True (FixedSizeDataLoader) or add_masks_to_batch=True (FixedSizeCollater)."
        )
    return [batch.get_example(i) for i in range(int(batch.graphs_mask.sum()))]
