"""Masks, True for what is real: what they are called, and where they are in a batch."""

import torch

from popgeo.data.axes import Axis, Level
from popgeo.data.batch_contents import Slot, SlotKind

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
