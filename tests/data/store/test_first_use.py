"""A store that is damaged, cut off or made up by a stranger is refused if it is used first, never read wrongly."""

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader
from popgeo.data import FlatStore, write
from popgeo.data.store.first_use import compare_stored
from popgeo.data.store.manifest import BLOCK_BYTES, from_json, to_json
from popgeo.data.store.mapped import mapped_file
from popgeo.native import library
from tests.support.forged_stores import set_numbers, sum_anew
from tests.support.graphs import assert_same_graphs, graph

GRAPHS = [graph(n, 2 * n, n) for n in (3, 1, 4, 2, 5, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(GRAPHS, tmp_path / "store", sort_edges=True)
    return tmp_path / "store"


@pytest.fixture(params=["compiled", "torch"])
def path_of_code(request):
    if request.param == "torch":
        with library.without_native():
            yield
    else:
        yield


def use(store: FlatStore) -> None:
    for batch in FixedSizeDataLoader(store, num_nodes=40, num_edges=80, batch_size=7):
        assert batch.num_nodes == 40


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("length", [1, 7, 8, 63, 64, 65, 127, 128, 255, 256, 257, 300, 1000, 65_536, 65_537, 99_999])
def test_the_compiled_checksum_is_that_of_zlib(tmp_path, length):
    values = torch.from_numpy(np.frombuffer(random.Random(length).randbytes(length), np.uint8).copy())
    graphs = [Data(x=values, num_nodes=length)]
    compare_stored(write(graphs, tmp_path / "store"))
    flip(tmp_path / "store" / "00-x.bin", 8 * length - 1)
    with pytest.raises(ValueError, match=r"00-x.bin is damaged"):
        compare_stored(FlatStore.open(tmp_path / "store"))


def test_every_flipped_bit_of_a_store_is_found_where_it_is_used_first(folder, path_of_code):
    chance = random.Random(0)
    paths = [path for path in sorted(folder.iterdir()) if path.stat().st_size]
    for _ in range(60):
        path = chance.choice(paths)
        before = path.read_bytes()
        flip(path, chance.randrange(8 * len(before)))
        with pytest.raises(ValueError, match=r"is damaged|must have"):
            use(FlatStore.open(folder))
        path.write_bytes(before)
    use(FlatStore.open(folder))


@pytest.mark.parametrize("how", ["one graph", "some graphs", "all", "a name", "a copy", "when it is opened"])
def test_whoever_reads_a_store_compares_what_is_read(folder, tmp_path, how):
    path = next(folder.glob("*name*" if how == "a name" else "00-x.bin"))
    flip(path, 8 * (path.stat().st_size - 3))
    store = FlatStore.open(folder)
    with pytest.raises(ValueError, match=f"{path.name} is damaged: its checksum differs"):
        {
            "one graph": lambda: store[0],
            "some graphs": lambda: use(store[:2]),
            "all": lambda: FlatStore.from_dataset(store, validate=True),
            "a name": lambda: store[5].name,
            "a copy": lambda: store.save(tmp_path / "copy", progress_bar=False),
            "when it is opened": lambda: FlatStore.open(folder, verify=True),
        }[how]()
    assert store.sizes[0].tolist() == [3, 6]  # row pointers were compared when the store was opened


def test_only_the_blocks_that_are_used_are_compared_and_each_once(tmp_path):
    if not library.is_available():
        pytest.skip(library.reason())  # whole files are compared without it
    rows = BLOCK_BYTES // 32
    edges = torch.zeros(2, rows * 3, dtype=torch.int64)
    graphs = [Data(x=torch.full((rows // 2, 4), float(i)), edge_index=edges) for i in range(4)]
    store = write(graphs, tmp_path / "store")
    x, edge_index = (mapped_file(attribute.values) for attribute in store.attributes)
    assert [len(file.seen) for file in (x, edge_index)] == [1, 6]
    before = int(edge_index.left)
    compare_stored(store, np.array([1]))
    assert int(edge_index.left) < before
    assert int(edge_index.seen.sum()) == before - int(edge_index.left)
    left = int(edge_index.left)
    compare_stored(store, np.array([1]))
    assert int(edge_index.left) == left
    compare_stored(store)
    assert [int(file.left) for file in (x, edge_index)] == [0, 0]
    assert_same_graphs(store[:], graphs)


def test_a_file_that_is_cut_off_while_it_is_mapped_is_an_error_and_no_signal(tmp_path):
    store = write([Data(x=torch.ones(9000, 4)) for _ in range(3)], tmp_path / "store")
    os.truncate(tmp_path / "store" / "00-x.bin", 4096)
    with pytest.raises(ValueError, match=r"00-x.bin was cut off to 4,096 bytes"):
        store[2]


def test_a_store_whose_checksums_were_taken_out_is_refused(folder):
    path = folder / "manifest.json"
    path.write_bytes(to_json(replace(from_json(path), block_sums=None)))
    with pytest.raises(ValueError, match="is damaged"):
        FlatStore.open(folder)


def test_edges_that_leave_their_graph_are_refused_whatever_the_checksums_say(folder, path_of_code):
    for value in (3, -1, 2**62, -(2**63)):
        before = (folder / "01-edge_index.bin").read_bytes()
        set_numbers(folder, "01-edge_index.bin", {0: value})
        store = FlatStore.open(folder)
        for read in (lambda store=store: use(store), lambda store=store: use(store.view([4, 0, 1]))):
            with pytest.raises(ValueError, match=f"Graph 0 has {value} in edge_index.0., but 3 nodes"):
                read()
        (folder / "01-edge_index.bin").write_bytes(before)
    sum_anew(folder)
    use(FlatStore.open(folder))
