"""Lays a batch out: one slot for each tensor, with its shape and its rule for padding."""

from collections.abc import Collection
from math import prod

import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Attribute, Axis, Level, ends_of
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.masks import mask_slot
from popgeo.data.slots import Kind, Layout, Slot


def lay_out(
    store: FlatStore,
    options: FixedSizeOptions,
    *,
    add_pad_masks: bool = True,
    follow_batch: Collection[str] = (),
    index_dtype: torch.dtype = torch.int64,
    spread_padding_edges: bool = False,
) -> Layout:
    """Decides the slots of a batch.

    Args:
        store: The dataset that batches are cut from.
        options: How many slots there are, and what padding is filled with.
        add_pad_masks: Whether batches carry masks.
        follow_batch: Attributes to add an assignment vector for.
        index_dtype: For `edge_index`, `batch`, `ptr` and every other attribute that PyG increments.
        spread_padding_edges: Deals padding edges out to all padding nodes, instead of looping on the first one.

    Raises:
        ValueError: the options lack a node or edge type, or the rows of a graph attribute of varying length.
    """
    slots: list[Slot] = []
    lists: list[Attribute] = []
    for attribute in store.attributes:
        if not isinstance(attribute.values, Tensor):
            lists.append(attribute)
            continue
        slot = _attribute_slot(store, options, attribute, attribute.values, index_dtype, spread_padding_edges)
        slots.append(slot)
        if attribute.name in follow_batch:
            slots += _owner_slots(f"{attribute.name}_", slot, options.num_graphs, index_dtype)
    for axis in store.size_axes:
        mask = mask_slot(axis, options.slots(axis))
        if axis.level is Level.NODE:
            slots += _owner_slots("", mask, options.num_graphs, index_dtype)
        if add_pad_masks:
            slots.append(mask)
        if axis.level is Level.EDGE and store.row_ends is not None:
            slots.append(_row_pointer_slot(options, axis, index_dtype, spread_padding_edges))
    if add_pad_masks:
        slots.append(mask_slot(GRAPHS, options.num_graphs))
    return Layout(slots=tuple(slots), lists=tuple(lists), options=options)


def _attribute_slot(
    store: FlatStore,
    options: FixedSizeOptions,
    attribute: Attribute,
    values: Tensor,
    index_dtype: torch.dtype,
    spread: bool,
) -> Slot:
    axis = attribute.axis
    number = options.rows(axis, store)
    outer, inner = values.shape[: attribute.dim], values.shape[attribute.dim + 1 :]
    shifted, joins = attribute.increments is not None, attribute.name == "edge_index"
    return Slot(
        store=attribute.store,
        name=attribute.name,
        kind=Kind.SHIFT if shifted else Kind.COPY,
        axis=axis,
        shape=(*outer, number, *inner),
        dtype=index_dtype if shifted and values.dtype == torch.int64 else values.dtype,
        num_slots=number,
        fixed_rows=axis.level is Level.GRAPH and attribute.name not in (options.num_rows or {}),
        attribute=attribute,
        outer=prod(outer),
        inner=prod(inner),
        pad_value=options.pad_value(axis.level, attribute.store, attribute.name),
        ends=tuple((end, options.slots(end)) for end in ends_of(axis)) if joins else (),
        spread=spread and joins,
    )


def _owner_slots(prefix: str, of: Slot, num_graphs: int, dtype: torch.dtype) -> list[Slot]:
    """`batch` and `ptr` of the rows of a slot."""
    kinds = (("batch", Kind.SEGMENT, of.num_slots), ("ptr", Kind.POINTER, num_graphs + 1))
    return [
        Slot(
            store=of.store,
            name=f"{prefix}{name}",
            kind=kind,
            axis=of.axis,
            shape=(length,),
            dtype=dtype,
            num_slots=of.num_slots,
            fixed_rows=of.fixed_rows,
        )
        for name, kind, length in kinds
    ]


def _row_pointer_slot(options: FixedSizeOptions, axis: Axis, index_dtype: torch.dtype, spread: bool) -> Slot:
    ends = tuple((end, options.slots(end)) for end in ends_of(axis))
    return Slot(
        store=axis.store,
        name="rowptr",
        kind=Kind.ROW_POINTER,
        axis=axis,
        shape=(ends[1][1] + 1,),
        dtype=index_dtype,
        num_slots=options.slots(axis),
        ends=ends,
        spread=spread,
    )
