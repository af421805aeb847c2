"""The layout of a batch: the user's choices, and one slot per tensor, with its shape and its rule for padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from typing_extensions import TypedDict

from popgeo.data.attribute_names import with_registered
from popgeo.data.axes import GRAPHS, Attribute, Level, Levels, ends_of, require_certain
from popgeo.data.batch_contents import Layout, Slot, SlotKind
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.masks import mask_slot
from popgeo.did_you_mean import names_arguments


@names_arguments
@dataclass(frozen=True, kw_only=True)
class LayoutChoices:
    """The choices for the layout of a batch, common to collaters, loaders of many graphs and loaders of a large graph.

    Each of these takes the choices as keyword arguments and passes them on as one object.

    Args:
        add_pad_masks: Whether batches have masks, True for real rows.
        follow_batch: Attributes to add an assignment vector for, as `Batch.from_data_list` does.
        exclude_keys: Attributes to leave out.
        levels: The level of attributes, as `{"y": "graph"}`. Default: registered (`register_attributes`) or inferred
            from names and numbers of rows.
        index_dtype: `torch.int64`, or `torch.int32` for machines that count in 32 bits. It applies to `edge_index`,
            `batch`, `ptr` and every other attribute that PyG increments.
        sort_edges: Whether to sort the edges of each graph by destination and to add `rowptr`: the edges that end at
            node `i` are `rowptr[i]` to `rowptr[i + 1]`.
        spread_padding_edges: Whether to distribute padding edges over all padding nodes, so that no row of a scatter
            receives all of them. Default: all are loops on the first padding node.

    Example:
        >>> LayoutChoices(follow_batch=["x"], sort_edges=True).follow_batch
        ('x',)
    """

    add_pad_masks: bool = True
    follow_batch: Sequence[str] | None = ()
    exclude_keys: Sequence[str] | None = ()
    levels: Levels | None = None
    index_dtype: torch.dtype = torch.int64
    sort_edges: bool = False
    spread_padding_edges: bool = False

    def __post_init__(self) -> None:
        for name in ("follow_batch", "exclude_keys"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        object.__setattr__(self, "levels", with_registered(self.levels))


class LayoutKeywords(TypedDict, total=False):
    """The choices of `LayoutChoices` that a collater takes by keyword only."""

    levels: Levels | None
    index_dtype: torch.dtype
    sort_edges: bool
    spread_padding_edges: bool


def lay_out(store: FlatStore, options: FixedSizeOptions, choices: LayoutChoices | None = None) -> Layout:
    """Return the slots of a batch.

    Args:
        store: The dataset of the batches. If its edges are sorted, batches have `rowptr`.
        options: The numbers of slots and the values of padding.
        choices: The other choices. Default: those of `LayoutChoices()`.

    Raises:
        ValueError: the options lack a node or edge type, or the rows of a graph attribute of varying length.
    """
    choices = choices or LayoutChoices()
    # A single number per graph is a label of the graph; a row of several numbers may belong to the only node.
    unsure = (a for a in store.attributes if a.doubt is Level.NODE and a.axis == GRAPHS and a.tensor.dim() > 1)
    require_certain(unsure, "padding of nodes differs from padding of graphs")
    slots: list[Slot] = []
    for attribute in (one for one in store.attributes if one.is_tensor):
        slot = _attribute_slot(store, options, attribute, choices)
        slots.append(slot)
        if attribute.name in (choices.follow_batch or ()):
            slots += _owner_slots(f"{attribute.name}_", slot, options.num_graphs, choices.index_dtype)
    for axis in store.size_axes:
        mask = mask_slot(axis, options.slots(axis))
        if axis.level is Level.NODE:
            slots += _owner_slots("", mask, options.num_graphs, choices.index_dtype)
        if choices.add_pad_masks:
            slots.append(mask)
        if axis.level is Level.EDGE and store.row_ends is not None:
            ends = tuple((end, options.slots(end)) for end in ends_of(axis))
            made = replace(mask, name="rowptr", kind=SlotKind.ROW_POINTER, shape=(ends[1][1] + 1,))
            slots.append(replace(made, dtype=choices.index_dtype, ends=ends, spread=choices.spread_padding_edges))
    if choices.add_pad_masks:
        slots.append(mask_slot(GRAPHS, options.num_graphs))
    own = {(slot.store, slot.name) for slot in slots if slot.attribute is None}
    if both := [attribute.name for attribute in store.attributes if (attribute.store, attribute.name) in own]:
        raise ValueError(f"The graphs have {both}, which batches make themselves. Rename or pass exclude_keys={both}.")
    lists = tuple(attribute for attribute in store.attributes if not attribute.is_tensor)
    return Layout(slots=tuple(slots), lists=lists, options=options)


def for_all_graphs(layout: Layout, store: FlatStore) -> Layout:
    """Return a layout with the size of the largest graph, for a store that has all graphs of the dataset."""
    largest = {axis: int(store.counts(axis).max(initial=0)) for axis in store.size_axes if axis.level is Level.NODE}
    known = [largest.get(slot.axis) if slot.kind is SlotKind.SEGMENT else None for slot in layout.slots]
    slots = (replace(slot, largest=most) for slot, most in zip(layout.slots, known, strict=True))
    return replace(layout, slots=tuple(slots))


def _attribute_slot(store: FlatStore, options: FixedSizeOptions, attribute: Attribute, choices: LayoutChoices) -> Slot:
    axis, values = attribute.axis, attribute.tensor
    number = options.rows(axis, store)
    outer, inner = values.shape[: attribute.dim], values.shape[attribute.dim + 1 :]
    shifted, joins = attribute.increments is not None, attribute.name == "edge_index"
    return Slot(
        store=attribute.store,
        name=attribute.name,
        kind=SlotKind.SHIFT if shifted else SlotKind.COPY,
        axis=axis,
        shape=(*outer, number, *inner),
        dtype=choices.index_dtype if shifted and values.dtype == torch.int64 else values.dtype,
        num_slots=number,
        fixed_rows=axis.level is Level.GRAPH and attribute.name not in (options.num_rows or {}),
        attribute=attribute,
        outer=prod(outer),
        inner=prod(inner),
        pad_value=options.pad_value(axis.level, attribute.store, attribute.name),
        ends=tuple((end, options.slots(end)) for end in ends_of(axis)) if joins else (),
        spread=choices.spread_padding_edges and joins and prod(outer) == 2,
    )


def _owner_slots(prefix: str, of: Slot, num_graphs: int, dtype: torch.dtype) -> list[Slot]:
    """Return the slots `batch` and `ptr` for the rows of a slot."""
    kinds = (("batch", SlotKind.SEGMENT, of.num_slots), ("ptr", SlotKind.POINTER, num_graphs + 1))
    rows: Any = {"store": of.store, "axis": of.axis, "num_slots": of.num_slots, "fixed_rows": of.fixed_rows}
    return [Slot(name=prefix + name, kind=kind, shape=(length,), dtype=dtype, **rows) for name, kind, length in kinds]
