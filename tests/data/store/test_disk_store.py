"""A store on disk: what is written comes back, does all that one in memory does, and damage is named."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset
from torch_geometric.data import Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, write
from popgeo.data.sort_edges import sort_edges
from popgeo.data.store.mapped import file_of
from popgeo.data.subset import take
from popgeo.loader import FixedSizeDataLoader
from popgeo.loader.chunk_order import ByteRanges
from tests.support.graphs import assert_same_graphs, graph, hetero_graph, lists_of_graphs, lists_of_hetero_graphs, same

MOLECULES = [graph(n, 2 * n - 1, n) for n in (3, 1, 4, 2, 5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def assert_same_stores(found: FlatStore, expected: FlatStore) -> None:
    assert (found.sizes == expected.sizes).all()
    for own, other in zip(found.attributes, expected.attributes, strict=True):
        assert (own.store, own.name, own.axis, own.dim) == (other.store, other.name, other.axis, other.dim)
        if other.is_tensor:
            assert same(own.values, other.values), own.name
        else:
            assert list(own.values) == list(other.values)
        assert (own.increments is None) == (other.increments is None)
        assert own.increments is None or same(own.increments, other.increments)
    for axis, pointer in expected.row_pointers.items():
        assert same(found.row_pointers[axis], pointer)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(lists_of_graphs(), lists_of_hetero_graphs()), st.sampled_from([1, 2000, 1 << 26]), st.booleans())
def test_what_is_written_comes_back_whatever_the_buffer(tmp_path_factory, graphs, buffer_bytes, as_stream):
    folder = tmp_path_factory.mktemp("stores") / "store"
    expected = FlatStore.from_dataset(graphs)
    if as_stream:
        store = write(iter(graphs), folder, buffer_bytes=buffer_bytes)
    else:
        expected.save(folder, buffer_bytes=buffer_bytes)
        store = FlatStore.open(folder, verify=True)
    assert_same_stores(store, expected)
    assert_same_graphs(store[:], graphs)
    assert_same_graphs([pickle.loads(pickle.dumps(store))[i] for i in range(len(graphs))], graphs)


@pytest.mark.parametrize("graphs", [MOLECULES, [hetero_graph(2, n, n, 2, n) for n in (1, 2, 3)]], ids=["one", "hetero"])
@pytest.mark.parametrize("strategy", ["PadToMax", "StreamPack", "Window", "Optimal"])
def test_batches_are_those_of_the_same_graphs_in_memory(folder, native, graphs, strategy):
    stores = FlatStore.from_dataset(graphs), write(graphs, folder)
    batches = [
        list(FixedSizeDataLoader(store, 3, shuffle=False, fixed_size_strategy=strategy, sort_edges=True))
        for store in stores
    ]
    for own, other in zip(*batches, strict=True):
        for own_store, other_store in zip(own.stores, other.stores, strict=True):
            assert all(same(own_store[name], value) for name, value in other_store.items())


def test_views_splits_and_left_out_attributes_work_as_in_memory(folder):
    store = write(MOLECULES, folder)
    assert_same_graphs(store[[4, 0]], [MOLECULES[4], MOLECULES[0]])
    assert_same_graphs(store[1::2], MOLECULES[1::2])
    assert_same_graphs(store[torch.tensor([True, False, False, False, True])], [MOLECULES[0], MOLECULES[4]])
    assert_same_graphs(FlatStore.from_dataset(Subset(store, [3])), [MOLECULES[3]])
    assert store[-1].name == "graph 5"
    with pytest.raises(IndexError, match="Graph 5 was asked for; there are 5"):
        store[5]
    left = FlatStore.from_dataset(store, exclude_keys=["edge_index", "edge_attr"])
    assert left.sizes.tolist() == [[n, 0] for n in (3, 1, 4, 2, 5)]
    store[[4, 0]].save(folder.with_name("part"))
    assert_same_graphs(FlatStore.open(folder.with_name("part")), [MOLECULES[4], MOLECULES[0]])


def test_a_graph_of_a_store_on_disk_is_a_copy_that_may_be_changed(folder):
    store = write(MOLECULES, folder)
    store[0].x += 1
    assert_same_graphs([store[0]], [MOLECULES[0]])


@pytest.mark.parametrize("graphs", [MOLECULES, [hetero_graph(2, n, 4, 3, n) for n in (1, 2, 3)]], ids=["one", "hetero"])
def test_edges_sorted_when_written_need_no_sorting_when_read(folder, graphs):
    store, expected = write(graphs, folder, sort_edges=True, buffer_bytes=1), sort_edges(FlatStore.from_dataset(graphs))
    assert_same_stores(store, expected)
    assert sort_edges(store) is store
    for key, ends in expected.row_ends.items():
        assert same(store.row_ends[key], ends)
    without = FlatStore.from_dataset(store, exclude_keys=["y"])
    assert without.row_ends is store.row_ends
    swapped, some = take(store, np.array([2, 0])), sort_edges(FlatStore.from_dataset([graphs[2], graphs[0]]))
    for key, ends in some.row_ends.items():
        assert same(swapped.row_ends[key], ends)


def test_a_loader_over_sorted_edges_on_disk_carries_row_pointers_also_where_it_trims(folder):
    store = write(MOLECULES, folder, sort_edges=True)
    loader = FixedSizeDataLoader(store, num_nodes=16, num_edges=5, batch_size=3, over_size_strategy="TrimEdges")
    for batch in loader:
        assert int(batch.rowptr[-1]) == batch.num_edges
        destination, counts = batch.edge_index[1], batch.rowptr.diff()
        assert torch.equal(torch.bincount(destination, minlength=16), counts)


def test_an_attribute_that_turns_out_to_have_rows_of_its_own_does_so(folder):
    graphs = [Data(x=torch.ones(3, 1), modes=torch.ones(n, 2)) for n in (1, 1, 4, 1)]
    assert_same_stores(write(graphs, folder, buffer_bytes=1), FlatStore.from_dataset(graphs))


def test_attributes_without_elements_and_of_odd_types_come_back(folder):
    graphs = [
        Data(x=torch.ones(2, 0), h=torch.ones(2, 3, dtype=torch.bfloat16), c=torch.ones(2, 1, dtype=torch.complex64))
        for _ in range(3)
    ]
    assert_same_stores(write(graphs, folder, buffer_bytes=1), FlatStore.from_dataset(graphs))


def test_classes_with_increments_of_their_own_come_back(folder):
    store = write([Bipartite(n) for n in (1, 2)], folder, buffer_bytes=1)
    assert store.data_cls is Bipartite
    batch = FixedSizeCollater(FixedSizeOptions(9, 9, 4))([store[0], store[1]])
    assert batch.edge_index[:, :2].tolist() == [[0, 3], [0, 1]]


class Bipartite(Data):
    def __init__(self, n: int = 1) -> None:
        super().__init__(x=torch.ones(n, 1), edge_index=torch.zeros(2, 1, dtype=torch.long), num_sources=n + 2)

    def __inc__(self, key, value, *args):
        if key == "edge_index":
            return torch.tensor([[int(self.num_sources)], [len(self.x)]])
        return super().__inc__(key, value, *args)


def test_nothing_of_the_arrays_lies_in_memory(folder):
    store = write(MOLECULES, folder, sort_edges=True)
    tensors = [t for a in store.attributes for t in (a.values, a.increments) if isinstance(t, torch.Tensor)]
    for tensor in (*tensors, *store.row_pointers.values(), *store.row_ends.values()):
        assert file_of(tensor) is not None
    assert len(pickle.dumps(store)) < 6000


def test_whoever_opens_the_store_sees_the_same_pages(folder):
    one, other = write(MOLECULES, folder), FlatStore.open(folder)
    with (folder / "06-train_mask.bin").open("r+b") as file:  # no copy is made, so a change is seen at once
        file.write(bytes(15))
    assert not one.attributes[6].values.any()
    assert not other.attributes[6].values.any()


@pytest.mark.parametrize("damage", ["shorter", "longer", "missing"])
@pytest.mark.parametrize("name", ["00-x.bin", "rows-01.bin", "10-name.json"])
def test_a_file_of_another_length_is_named_on_opening(folder, damage, name):
    write(MOLECULES, folder)
    path = folder / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "shorter" else path.read_bytes() + b"0")
    with pytest.raises(ValueError, match=rf"{name} is damaged: it (is missing|has \d+ bytes)"):
        FlatStore.open(folder)


def test_a_changed_byte_is_named_when_files_are_verified(folder):
    write(MOLECULES, folder)
    for path in sorted(folder.glob("*.[bj][is]*")):
        before = path.read_bytes()
        if path.name == "manifest.json" or not before:
            continue
        place = len(before) // 2
        path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        with pytest.raises(ValueError, match=rf"{path.name} is damaged: its checksum differs"):
            FlatStore.open(folder, verify=True)
        path.write_bytes(before)
    FlatStore.open(folder, verify=True)


def test_a_manifest_that_is_damaged_or_of_another_version_is_refused(folder):
    write(MOLECULES, folder)
    path = folder / "manifest.json"
    text = path.read_text()
    for wrong, message in [
        (text[:-9], "manifest.json is damaged"),
        (text.replace('"num_graphs": 5', '"num_graphs": 4'), "its checksum differs"),
        (json.dumps({**json.loads(text), "version": 99}), "version 99; this popgeo reads"),
        ("[]", "manifest.json is damaged"),
    ]:
        path.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            FlatStore.open(folder)
    with pytest.raises(ValueError, match="is not a store of popgeo"):
        FlatStore.open(folder.parent)


def test_a_store_that_has_changed_is_not_taken_for_the_one_that_was_pickled(folder):
    pickled = pickle.dumps(write(MOLECULES, folder))
    os.utime(folder / "00-x.bin", ns=(1, 1))
    with pytest.raises(ValueError, match=r"00-x.bin has changed since"):
        pickle.loads(pickled)


def test_what_travels_to_a_worker_process_cuts_the_same_batches_there(folder):
    loader = FixedSizeDataLoader(write(MOLECULES, folder), 3)
    pickled = pickle.dumps(loader.source)
    assert len(pickled) < 20_000
    assert same(pickle.loads(pickled).cut(loader.plan(), (0, 0), 1)[1].x, list(loader)[1].x)


def test_the_bytes_of_a_graph_are_where_its_arrays_say(folder):
    graphs = [Data(x=torch.full((n, 2, 3), float(n)), edge_index=torch.zeros(2, 1, dtype=torch.long)) for n in (2, 3)]
    store = write(graphs, folder)
    found = ByteRanges(store).of(1, 2)
    parts = [path.read_bytes()[begin:end] for path, begin, end in found if end - begin == 3 * 2 * 3 * 4]
    assert parts == [graphs[1].x.numpy().tobytes()]
    assert sorted(end - begin for _, begin, end in found if end - begin != 3 * 2 * 3 * 4) == [
        8,
        8,
    ]
