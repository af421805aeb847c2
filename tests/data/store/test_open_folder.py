"""What is found out when a folder is opened: its manifest, its row pointers, its values that are not tensors."""

import json
import pickle
import sys
import types
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FlatStore, write
from popgeo.data.store import manifest as notes
from popgeo.data.store import mapped
from popgeo.data.store.manifest import from_json, sums_of_file, to_json
from popgeo.data.store.mapped import file_of, map_file, packed, unpacked
from popgeo.data.store.save_columns import bytes_of_graphs
from popgeo.data.store.stored_list import StoredList, as_bytes
from popgeo.loader.chunk_order import ByteRanges
from tests.support.forged_stores import set_numbers
from tests.support.graphs import assert_same_graphs, graph, hetero_graph

GRAPHS = [graph(n, 2 * n, n) for n in (3, 1, 4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(GRAPHS, tmp_path / "store", sort_edges=True)
    return tmp_path / "store"


def change_manifest(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_bytes(to_json(replace(from_json(path), **values)))


def test_a_manifest_comes_back_from_its_text(folder, tmp_path):
    write([hetero_graph(2, 3, 4, 1)], tmp_path / "hetero", sort_edges=True)
    for path in (folder / "manifest.json", tmp_path / "hetero" / "manifest.json"):
        manifest = from_json(path)
        assert to_json(manifest) == path.read_bytes()
        copied = path.with_name("copy.json")
        copied.write_bytes(to_json(manifest))
        assert from_json(copied) == manifest


def test_the_order_of_a_manifests_entries_does_not_matter(folder):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items()))))
    assert_same_graphs([FlatStore.open(folder)[0].sort()], [GRAPHS[0].sort()])


@pytest.mark.parametrize("at_once", [1, 5, 1 << 20])
def test_checksums_are_the_same_however_much_is_read_at_once(folder, monkeypatch, at_once):
    monkeypatch.setattr(notes, "BLOCK_BYTES", at_once)
    (folder / "some").write_bytes(b"abcdef")
    assert sums_of_file(folder / "some", 2)[0] == (zlib.crc32(b"abc"), zlib.crc32(b"def"))


def test_a_number_of_graphs_that_is_not_that_of_the_row_pointers_is_refused(folder):
    for number in (2, 4):
        change_manifest(folder, num_graphs=number)
        with pytest.raises(ValueError, match=r"rows-00.bin is damaged"):
            FlatStore.open(folder)


@pytest.mark.parametrize(("place", "value"), [(0, 1), (0, -1), (1, 5), (1, 2**62), (2, 2), (2, -1), (-1, 9), (-1, 7)])
def test_row_pointers_that_do_not_lead_through_all_rows_are_refused(folder, place, value):
    assert np.fromfile(folder / "rows-01.bin", dtype=np.int64).tolist() == [0, 3, 4, 8]
    set_numbers(folder, "rows-01.bin", {place: value})
    for verify in (None, True, False):
        with pytest.raises(ValueError, match=r"is damaged: (its row numbers do not|it is|its shape .* does not fit)"):
            FlatStore.open(folder, verify=verify)


def test_rows_of_which_no_attribute_tells_are_taken_as_they_are(tmp_path):
    store = write([Data(num_nodes=n, y=torch.ones(1)) for n in (2, 5)], tmp_path / "store")
    assert FlatStore.open(tmp_path / "store").sizes.tolist() == store.sizes.tolist() == [[2, 0], [5, 0]]


def test_the_class_of_the_graphs_must_be_imported_and_a_graphs(folder, monkeypatch):
    made = types.ModuleType("made_for_this_test")
    made.Mine, made.other = type("Mine", (Data,), {}), int
    for name in ("made_for_this_test.Mine", "made_for_this_test.other", "torch_geometric.data.Nothing", "Data"):
        change_manifest(folder, data_class=name)
        with pytest.raises(ValueError, match=rf"are of class {name}. Import .*before opening it"):
            FlatStore.open(folder)
    monkeypatch.setitem(sys.modules, "made_for_this_test", made)
    change_manifest(folder, data_class="made_for_this_test.Mine")
    assert type(FlatStore.open(folder)[0]) is made.Mine
    for name in ("made_for_this_test.other", "made_for_this_test.Data"):
        change_manifest(folder, data_class=name)
        with pytest.raises(ValueError, match=f"are of class {name}"):
            FlatStore.open(folder)


def test_values_that_are_no_tensors_are_read_by_number_and_by_slice():
    values = ["C", None, {"a": [1, 2.5]}, "Öl", True]
    text, lengths = as_bytes(values, "name")
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    stored = StoredList(text, ends)
    assert len(stored) == 5
    assert list(stored) == values
    assert [stored[i] for i in range(-5, 5)] == values + values
    assert (stored[1:4], stored[::-2], stored[7:]) == (values[1:4], values[::-2], [])
    assert list(pickle.loads(pickle.dumps(stored))) == values
    for number in (5, -6):
        with pytest.raises(IndexError, match=f"Value {number} was asked for; there are 5"):
            stored[number]
    assert [part.tolist() for part in as_bytes([], "name")] == [[], []]


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), (1, 2), {1: 2}, [float("inf")], object(), {"a": (1,)}])
def test_values_that_would_come_back_as_others_are_refused(value):
    with pytest.raises(ValueError, match=r"Attribute 'name' holds .*cannot be stored on disk.*exclude_keys=\['name'\]"):
        as_bytes(["fine", value], "name")


def test_a_value_that_holds_itself_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(ValueError, match="cannot be stored on disk"):
        as_bytes([value], "name")


def test_only_a_whole_mapped_file_is_taken_for_one(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(12, dtype=np.int32).tobytes())
    tensor = map_file(path, torch.int32, (3, 4))
    assert tensor.tolist() == torch.arange(12).view(3, 4).tolist()
    reference = file_of(tensor)
    assert (reference.path, reference.dtype, reference.shape) == (path.resolve(), torch.int32, (3, 4))
    assert reference.stamp == (48, path.stat().st_mtime_ns)
    others = (tensor[1:], tensor[:2], tensor.view(4, 3), tensor.view(torch.float32), tensor.clone(), [1], None)
    assert [file_of(one) for one in (*others, torch.empty(3, 4, dtype=torch.int32, device="meta"))] == [None] * 8
    value = {"a": tensor, "b": {"c": tensor[1:], "d": "text"}}
    travelling = packed(value)
    assert travelling == {"a": reference, "b": {"c": value["b"]["c"], "d": "text"}}
    found = unpacked(travelling)
    assert (file_of(found["a"]), found["b"]["d"]) == (reference, "text")


def test_memory_that_is_used_anew_is_not_taken_for_a_file_that_was_there(tmp_path):
    (tmp_path / "numbers").write_bytes(bytes(48))
    tensor = map_file(tmp_path / "numbers", torch.int32, (3, 4))
    address = tensor.data_ptr()
    assert address in mapped._MAPPED
    del tensor
    assert address not in mapped._MAPPED


def test_classes_of_pyg_are_found_wherever_it_keeps_them(folder):
    change_manifest(folder, data_class="torch_geometric.data.some_other_module.Data")
    assert type(FlatStore.open(folder)[0]) is Data


def test_an_empty_file_is_an_empty_tensor_that_is_no_file(tmp_path):
    (tmp_path / "empty").touch()
    tensor = map_file(tmp_path / "empty", torch.int64, (2, 0, 3))
    assert (tensor.shape, tensor.dtype, file_of(tensor)) == ((2, 0, 3), torch.int64, None)


def test_the_stretches_of_files_that_hold_some_graphs_by_hand(tmp_path):
    sizes = ((2, 1), (3, 0), (1, 2))
    graphs = [Data(x=torch.ones(n, 3), edge_index=torch.zeros(2, e).long(), name="a") for n, e in sizes]
    store = write(graphs, tmp_path / "store")
    ranges = ByteRanges(store)
    x, ends = (tmp_path / "store" / name for name in ("00-x.bin", "01-edge_index.bin"))
    assert ranges.of(0, 1) == [(x, 0, 24), (ends, 0, 8), (ends, 24, 32)]
    assert ranges.of(1, 2) == [(x, 24, 60)]
    assert ranges.of(1, 3) == [(x, 24, 72), (ends, 8, 24), (ends, 32, 48)]
    assert ranges.of(2, 2) == []
    assert ByteRanges(FlatStore.from_dataset(graphs)).of(0, 3) == []
    # A node has 3 floats, an edge 2 whole numbers, a name 8 bytes of the graphs' own; each row of each 8 more.
    assert bytes_of_graphs(store).sum() == 6 * 20 + 3 * 24 + 3 * 8
    assert len(bytes_of_graphs(store.view([]))) == 0
