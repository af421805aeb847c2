"""The compiled library fills what the definition in plain torch fills."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader
from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from popgeo.data.axes import GRAPHS
from popgeo.data.batch_layout import lay_out
from popgeo.data.compiled_fill import _OUT, Filler
from popgeo.data.sort_edges import sort_edges
from popgeo.native import library
from tests.support.graphs import graph, lists_of_graphs, options_for, same


@settings(deadline=None, max_examples=25)
@given(
    graphs=lists_of_graphs(),
    edges=st.integers(0, 5),
    spread=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_the_compiled_library_and_the_fallback_agree_to_the_last_bit(graphs, edges, spread, dtype):
    if not library.is_available():
        pytest.skip(library.reason())
    collate = FixedSizeCollater(
        options_for(graphs, 3, edges, 2),
        add_masks_to_batch=True,
        follow_batch=["edge_attr", "y", "x"],
        index_dtype=dtype,
        spread_padding_edges=spread,
    )
    compiled = collate(graphs)
    with library.without_native():
        fallback = collate(graphs)
    assert list(compiled.keys()) == list(fallback.keys())
    assert all(same(compiled[name], fallback[name]) for name in compiled.keys())  # noqa: SIM118


def test_graphs_in_memory_are_filled_by_the_compiled_library():
    store = FlatStore.from_dataset([graph(3, 2), graph(2, 4)])
    assert Filler(store, lay_out(store, FixedSizeOptions(8, 8, 4))).can_be_compiled


def filler_of(store: FlatStore, *sizes: int) -> Filler:
    return Filler(store, lay_out(store, FixedSizeOptions(*sizes)))


def test_only_integers_on_the_processor_are_filled_by_the_compiled_library():
    store = FlatStore.from_dataset([graph(3, 2), graph(2, 4)])
    assert filler_of(store, 8, 8, 4).can_be_compiled
    x, index, *others = store.attributes
    for odd in (replace(x, values=x.tensor.to("meta")), replace(index, values=index.tensor.to(torch.int16))):
        mixed = replace(store, attributes=(odd, *others), _cache={})
        assert not filler_of(mixed, 8, 8, 4).can_be_compiled
    small = replace(store, attributes=(replace(x, values=x.tensor.to(torch.int8)), index), _cache={})
    assert filler_of(small, 8, 8, 4).can_be_compiled


def test_every_address_that_is_handed_on_is_that_of_a_tensor_that_stays():
    store = sort_edges(FlatStore.from_dataset([graph(3, 2), graph(2, 4)]))
    filler = filler_of(store, 8, 8, 4)
    kept = {tensor.data_ptr() for tensor in filler.kept}
    fields = list(filler._describe(filler.layout.slots[0]))
    assert fields[_OUT] == "out"
    columns = [fields.index(name) for name in ("source", "pad", "increments", "row_ends")]
    assert set(filler.table[:, columns].flatten().tolist()) - {0} <= kept
    assert set(filler.row_pointers.tolist()) - {0} <= kept
    assert (filler.row_pointers == 0).tolist() == [axis == GRAPHS for axis in store.row_pointers]


def test_memory_that_is_not_to_be_had_is_an_error_of_its_own(monkeypatch):
    filler = filler_of(FlatStore.from_dataset([graph(3, 2)]), 8, 8, 4)
    tensors = [torch.empty((1, *slot.shape), dtype=slot.dtype) for slot in filler.layout.slots]
    for code, kind in ((1, MemoryError), (2, ValueError)):
        monkeypatch.setattr(library, "function", lambda *entry, code=code: lambda *arguments: code)
        with pytest.raises(kind, match="1 graphs"):
            filler(np.zeros(1, dtype=np.int64), np.array([0, 1]), tensors)


@pytest.mark.parametrize("sizes", [(3, 8, 4), (8, 2, 4), (8, 8, 2)], ids=["nodes", "edges", "graphs"])
def test_graphs_that_do_not_fit_are_not_written_behind_a_batch(native, sizes):
    store = sort_edges(FlatStore.from_dataset([graph(2, 1), graph(2, 2), graph(1, 0)]))
    layout = lay_out(store, FixedSizeOptions(*sizes))
    tensors = [torch.empty((1, *slot.shape), dtype=slot.dtype) for slot in layout.slots]
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        Filler(store, layout)(np.arange(3), np.array([0, 3]), tensors)


def test_memory_for_fewer_batches_or_other_shapes_is_refused():
    store = FlatStore.from_dataset([graph(2, 1), graph(2, 2)])
    layout = lay_out(store, FixedSizeOptions(5, 5, 4))
    filler, rows, ptr = Filler(store, layout), np.arange(2), np.array([0, 1, 2])
    tensors = [torch.empty((1, *slot.shape), dtype=slot.dtype) for slot in layout.slots]
    with pytest.raises(AssertionError):
        filler(rows, ptr, tensors)
    slots = [replace(layout.slots[0], num_slots=6), *layout.slots[1:]]
    with pytest.raises(AssertionError):
        Filler(store, replace(layout, slots=tuple(slots)))


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v + 10**6, lambda v: v - 5, lambda v: v.flip(0),
                                    lambda v: v.int(), lambda v: v.float(), lambda v: v.repeat(2), lambda v: v * 2,
                                    lambda v: v[:0]])  # fmt: skip
def test_row_pointers_that_do_not_fit_are_refused_before_a_row_is_read(change):
    store = FlatStore.from_dataset([Data(x=torch.ones(n, 2), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 4)])
    for axis, pointer in store.row_pointers.items():
        wrong = replace(store, row_pointers={**store.row_pointers, axis: change(pointer)}, _cache={})
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            next(iter(FixedSizeDataLoader(wrong, 2, fixed_size_options=FixedSizeOptions(32, 32, num_graphs=3))))
