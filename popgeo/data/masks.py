"""Masks, True for what is real: what they are called, where they are in a batch, and how they are filled."""

import torch
from torch import Tensor

from popgeo.data.axes import Axis, Level
from popgeo.data.slots import Slot, SlotKind

MASKS = {Level.NODE: "nodes_mask", Level.EDGE: "edges_mask", Level.GRAPH: "graphs_mask"}
"""The name of the mask of each level."""


def mask_slot(axis: Axis, num_slots: int) -> Slot:
    """The mask of nodes or edges of a type, or of graphs.

    Args:
        axis: What it is a mask of.
        num_slots: How many of them a batch has, padding included.

    Example:
        >>> mask_slot(Axis(Level.NODE, "paper"), 8).name
        'nodes_mask'
    """
    return Slot(
        store=axis.store,
        name=MASKS[axis.level],
        kind=SlotKind.MASK,
        axis=axis,
        shape=(num_slots,),
        dtype=torch.bool,
        num_slots=num_slots,
    )


def fill_mask(out: Tensor, num_real: Tensor) -> None:
    """Writes the masks of several batches.

    Args:
        out: Where to. bool [num_batches, num_slots]
        num_real: How many rows of each batch are real. int64 [num_batches]

    Example:
        >>> out = torch.empty(2, 3, dtype=torch.bool)
        >>> fill_mask(out, torch.tensor([2, 0]))
        >>> out.tolist()
        [[True, True, False], [False, False, False]]
    """
    torch.lt(torch.arange(out.shape[1]), num_real[:, None], out=out)
