"""The names and the slots of masks, which are True for real rows."""

import torch

from popgeo.data.axes import Axis, Level
from popgeo.data.batch_contents import Slot, SlotKind

MASKS = {Level.NODE: "nodes_mask", Level.EDGE: "edges_mask", Level.GRAPH: "graphs_mask"}
"""The name of the mask of each level."""


def mask_slot(axis: Axis, num_slots: int) -> Slot:
    """Return the slot for the mask of a node type, of an edge type or of graphs.

    Args:
        axis: The axis of the mask.
        num_slots: The length of the mask, padding included.

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
