"""What a batch of fixed size is made of: one slot for each tensor, with its shape and its rule for padding."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod

import torch

from popgeo.data.flat_store import GRAPHS, Attribute, Axis, FlatStore
from popgeo.data.levels import Level, StoreKey
from popgeo.data.sizes import FixedSizeOptions


class Kind(IntEnum):
    """How a slot is filled."""

    COPY = 0
    """The rows of the graphs as they are."""
    SHIFT = 1
    """The rows of the graphs plus what the graphs before them amount to (`__inc__`), as in `edge_index`."""
    SEGMENT = 2
    """For each row the graph that it belongs to, as in `batch`."""
    POINTER = 3
    """For each graph its first row, as in `ptr`."""
    MASK = 4
    """True for rows of real graphs."""
    ROW_POINTER = 5
    """For each node its first edge, where edges are sorted by destination."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One tensor of a batch."""

    store: StoreKey
    name: str
    kind: Kind
    axis: Axis
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_slots: int
    """Rows along the axis, padding included."""
    fixed_rows: bool = False
    """Whether every graph, padding or not, has equally many rows along the axis, as graph attributes mostly have."""
    attribute: Attribute | None = None
    pad_value: float = 0.0
    ends: tuple[tuple[Axis, int], ...] = ()
    """For edges: the node axis at each end, and how many nodes a batch has there."""
    spread: bool = False
    """Whether padding edges are dealt out evenly to all padding nodes; otherwise the first one has them all."""

    @property
    def outer(self) -> int:
        """Elements before the dimension of rows: 2 for an `edge_index`."""
        return prod(self.attribute.tensor.shape[: self.attribute.dim]) if self.attribute else 1

    @property
    def inner(self) -> int:
        """Elements of one row."""
        return prod(self.attribute.tensor.shape[self.attribute.dim + 1 :]) if self.attribute else 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """All tensors of a batch, and the attributes that are lists."""

    slots: tuple[Slot, ...]
    lists: tuple[Attribute, ...]
    options: FixedSizeOptions

    def num_slots(self, axis: Axis) -> int:
        """Rows of a batch along an axis."""
        return next(slot.num_slots for slot in self.slots if slot.axis == axis)


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

    Raises:
        ValueError: the options lack a node or edge type, or the rows of a graph attribute of varying length.
    """
    slots: list[Slot] = []
    for attribute in store.attributes:
        if not attribute.is_tensor:
            continue
        slot = _attribute_slot(store, options, attribute, index_dtype, spread_padding_edges)
        slots.append(slot)
        if attribute.name in follow_batch:
            slots += _owner_slots(f"{attribute.name}_", slot, options, index_dtype)
    for axis in store.size_axes:
        mask = _mask_slot("nodes_mask" if axis.level is Level.NODE else "edges_mask", axis, options.slots(axis))
        if axis.level is Level.NODE:
            slots += _owner_slots("", mask, options, index_dtype)
        if add_pad_masks:
            slots.append(mask)
        if axis.level is Level.EDGE and store.row_ends is not None:
            slots.append(_row_pointer_slot(store, options, axis, index_dtype, spread_padding_edges))
    if add_pad_masks:
        slots.append(_mask_slot("graphs_mask", GRAPHS, options.num_graphs))
    lists = tuple(attribute for attribute in store.attributes if not attribute.is_tensor)
    return Layout(slots=tuple(slots), lists=lists, options=options)


def _owner_slots(prefix: str, of: Slot, options: FixedSizeOptions, dtype: torch.dtype) -> list[Slot]:
    """`batch` and `ptr` of the rows of a slot."""
    plain = replace(of, kind=Kind.SEGMENT, name=f"{prefix}batch", dtype=dtype, shape=(of.num_slots,), attribute=None)
    return [plain, replace(plain, kind=Kind.POINTER, name=f"{prefix}ptr", shape=(options.num_graphs + 1,))]


def _mask_slot(name: str, axis: Axis, number: int) -> Slot:
    kind, dtype = Kind.MASK, torch.bool
    return Slot(store=axis.store, name=name, kind=kind, axis=axis, shape=(number,), dtype=dtype, num_slots=number)


def _attribute_slot(
    store: FlatStore, options: FixedSizeOptions, attribute: Attribute, index_dtype: torch.dtype, spread: bool
) -> Slot:
    values = attribute.tensor
    number = _rows_of_a_batch(store, options, attribute.axis)
    shifted = attribute.increments is not None
    return Slot(
        store=attribute.store,
        name=attribute.name,
        kind=Kind.SHIFT if shifted else Kind.COPY,
        axis=attribute.axis,
        shape=(*values.shape[: attribute.dim], number, *values.shape[attribute.dim + 1 :]),
        dtype=index_dtype if shifted and values.dtype == torch.int64 else values.dtype,
        num_slots=number,
        fixed_rows=attribute.axis.level is Level.GRAPH and attribute.name not in (options.num_rows or {}),
        attribute=attribute,
        pad_value=options.pad_value(attribute.axis.level, attribute.store, attribute.name),
        ends=_ends(store, options, attribute.axis) if attribute.name == "edge_index" else (),
        spread=spread and attribute.name == "edge_index",
    )


def _row_pointer_slot(
    store: FlatStore, options: FixedSizeOptions, axis: Axis, index_dtype: torch.dtype, spread: bool
) -> Slot:
    ends = _ends(store, options, axis)
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


def _ends(store: FlatStore, options: FixedSizeOptions, axis: Axis) -> tuple[tuple[Axis, int], ...]:
    keys = (axis.store[0], axis.store[-1]) if isinstance(axis.store, tuple) else (None, None)
    axes = [Axis(Level.NODE, key) for key in keys]
    return tuple((end, options.slots(end)) for end in axes)


def _rows_of_a_batch(store: FlatStore, options: FixedSizeOptions, axis: Axis) -> int:
    if axis.level is not Level.GRAPH:
        return options.slots(axis)
    if axis == GRAPHS:
        return options.num_graphs
    assert axis.name is not None  # every other graph axis belongs to one attribute
    if options.num_rows and axis.name in options.num_rows:
        return options.num_rows[axis.name]
    rows = store.row_pointers[axis].diff()
    low, high = int(rows.min()), int(rows.max())
    if low != high:
        raise ValueError(
            f"Attribute {axis.name!r} has {low} to {high} rows a graph, so a batch has no fixed number of them. Pass "
            f"FixedSizeOptions(num_rows={{{axis.name!r}: {high * (options.num_graphs - 1) + 1}}}), or state its level "
            f"as levels={{{axis.name!r}: 'node'}} if it is not a graph's."
        )
    return low * options.num_graphs
