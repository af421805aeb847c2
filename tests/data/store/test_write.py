"""Writing a store as a stream: whole or not there, within its memory, going on after a kill, bad graphs refused."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.transforms import Compose, ToUndirected

from popgeo.data import FlatStore, write
from popgeo.data.store.manifest import read_manifest
from popgeo.data.store.save_columns import blocks
from popgeo.data.store.write_folder import FolderWriter
from popgeo.data.write_store import transform_name
from tests.conftest import REPOSITORY
from tests.data.test_validate import DAMAGE, damaged
from tests.support import quick_python
from tests.support.graphs import assert_same_graphs, graph, hetero_graph, lists_of_graphs
from tests.support.loaders import InMemory

GRAPHS = [graph(n, 2 * n, n) for n in (3, 1, 4, 2, 5, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


class Interrupted(Exception):
    pass


def interrupted_at(graphs: list[Data], number: int):
    yield from graphs[:number]
    raise Interrupted


@pytest.mark.parametrize("number", range(7))
def test_an_interrupted_writer_goes_on_where_it_was(folder, number):
    with pytest.raises(Interrupted):
        write(interrupted_at(GRAPHS, number), folder, buffer_bytes=1)
    assert not folder.exists()
    asked = []

    class Asked(list):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    store = write(Asked(GRAPHS), folder, buffer_bytes=1)
    assert_same_graphs(store[:], GRAPHS)
    assert asked == list(range(max(0, number - 1), 6))  # the last one once more, to know the source by it
    FlatStore.open(folder, verify=True)
    assert os.listdir(folder.parent) == ["store"]


@pytest.mark.parametrize("stop", ["append", "join", "name"])
def test_a_writer_killed_at_the_end_goes_on_too(folder, stop, monkeypatch):
    def killed(*arguments, **keywords):
        raise Interrupted

    with monkeypatch.context() as patch:
        if stop == "append":
            patch.setattr("popgeo.data.store.write_folder.write_atomically", killed)
        elif stop == "join":
            patch.setattr("popgeo.data.store.append_file.shutil.copyfileobj", killed)
        else:
            patch.setattr("popgeo.data.store.write_folder.os.replace", killed)
        with pytest.raises(Interrupted):
            write(GRAPHS, folder)
    assert not folder.exists()
    assert_same_graphs(write(GRAPHS, folder)[:], GRAPHS)
    FlatStore.open(folder, verify=True)


KILLED = """
import sys, time, torch
from torch_geometric.data import Data
from popgeo.data import write
def graphs():
    for n in range(1, 60):
        yield Data(x=torch.full((n, 1), float(n)), edge_index=torch.tensor([[0], [n - 1]]))
        if n == 30 and sys.argv[2] == "stop":
            print("waiting", flush=True)
            time.sleep(60)
print(len(write(graphs(), sys.argv[1], buffer_bytes=20_000)), flush=True)
"""


def test_a_process_that_was_killed_leaves_no_folder_and_its_successor_the_whole_one(folder):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [*quick_python.command(), "-c", KILLED, str(folder)]
    process = subprocess.Popen([*command, "stop"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    with pytest.raises(ValueError, match="Another process is writing"):
        write(GRAPHS, folder)
    process.kill()
    process.wait()
    process.stdout.read()  # until nobody is left who could write
    process.stdout.close()
    assert not folder.exists()
    graphs = [Data(x=torch.full((n, 1), float(n)), edge_index=torch.tensor([[0], [n - 1]])) for n in range(1, 60)]
    with FolderWriter(folder) as writer:
        assert 0 < writer.num_graphs <= 30
    assert_same_graphs(write(iter(graphs), folder)[:], graphs)


def test_going_on_with_other_graphs_another_transform_or_fewer_graphs_is_refused(folder):
    with pytest.raises(Interrupted):
        write(interrupted_at(GRAPHS, 4), folder, buffer_bytes=1)
    for others, settings_, message in [
        ([graph(3, 2, 9)] * 6, {}, "begun with other graphs: number 3 differs"),
        (GRAPHS[:2], {}, "begun with more graphs: 4"),
        (FlatStore.from_dataset(GRAPHS[:3]), {}, "begun with more graphs: 4"),
        (GRAPHS, {"transform": ToUndirected()}, "begun with transform None"),
        (GRAPHS, {"sort_edges": True}, "begun with other graphs"),
        (GRAPHS, {"validate": False}, "begun with transform None and checked indices"),
    ]:
        with pytest.raises(ValueError, match=message):
            write(others, folder, **settings_)
    assert_same_graphs(write(FlatStore.from_dataset(GRAPHS), folder)[:], GRAPHS)


def test_what_a_killed_writer_left_is_checked_before_going_on(folder):
    with pytest.raises(Interrupted):
        write(interrupted_at(GRAPHS, 4), folder, buffer_bytes=1)
    path = folder.with_name("store.part") / "00-x.bin"
    path.write_bytes(b"0" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"00-x.bin was left damaged. Remove the folder .*store.part to start again"):
        write(GRAPHS, folder)


def test_a_folder_that_exists_is_never_written_over(folder):
    write(GRAPHS, folder)
    with pytest.raises(ValueError, match="exists already"):
        write(GRAPHS, folder)
    with pytest.raises(ValueError, match="There are no graphs to write"):
        write([], folder.with_name("empty"))


def test_the_transform_runs_once_a_graph_and_is_noted_by_name(folder):
    store = write(GRAPHS, folder, transform=ToUndirected())
    assert_same_graphs(store[:], [ToUndirected()(one) for one in GRAPHS])
    assert read_manifest(folder).transform == "ToUndirected()"
    assert transform_name(Compose([ToUndirected()]), graph) == "Compose([\n  ToUndirected()\n]), graph"


def test_blocks_stay_within_the_buffer():
    store = FlatStore.from_dataset([graph(n % 9 + 1, 20, n) for n in range(60)])
    parts = list(blocks(store, 0, 20_000))
    assert sum(part.num_stored for part in parts) == 60
    for part in parts:
        tensors = [a.tensor for a in part.attributes if a.is_tensor]
        assert sum(t.numel() * t.element_size() for t in tensors) <= 10_000
    assert len(list(blocks(store, 0, 1))) == 60


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"x": torch.ones(2, 4)}, "Graph 2: Attribute 'x' is float32 .rows, 4. of a node, in graphs"),
        ({"x": torch.ones(2, 3).double()}, "Graph 2: Attribute 'x' is float64"),
        ({"edge_index": torch.tensor([[0], [2]])}, r"Graph 2 has 2 in edge_index\[1\]"),
        ({"other": 1}, "Graph 2: They differ in the attributes .'other'."),
        ({"pos": torch.ones(3, 3)}, "raph 2 has 3 rows in .pos"),
        ({"note": {1, 2}}, "Graph 2: Attribute 'note' holds {1, 2} of type set"),
    ],
)
def test_a_graph_unlike_those_before_is_refused_by_its_number(folder, odd, message):
    def make(n: int, **others):
        values = {"x": torch.ones(n, 3), "pos": torch.ones(n, 3), "edge_index": torch.tensor([[0], [1]])} | others
        return Data(**values, **({} if "note" in others else {"note": "fine"}))

    with pytest.raises(ValueError, match=message):
        write([make(3), make(4), make(2, **odd), make(3)], folder, buffer_bytes=1)
    with pytest.raises(ValueError, match=r"data_class is .*HeteroData"):
        write([make(3), hetero_graph(1, 1, 1, 1)], folder.with_name("mixed"), buffer_bytes=1)


@pytest.mark.parametrize("damage", DAMAGE)
def test_of_random_streams_the_broken_ones_are_refused_and_only_those(damage, tmp_path_factory):
    @settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(lists_of_graphs(), st.integers(0, 50), st.sampled_from([1, 1 << 26]))
    def check(graphs, where, buffer_bytes):
        number, kind = where % len(graphs), damage
        if kind in ("negative", "too large") and not graphs[number].num_edges:
            kind = "none"
        if kind in ("another width", "fewer positions") and number == 0:
            kind = "none"  # the first graph is what the others are compared with
        broken = [damaged(one, kind, where) if i == number else one for i, one in enumerate(graphs)]
        folder = tmp_path_factory.mktemp("stores") / "store"
        if kind == "none":
            assert_same_graphs(write(broken, folder, validate=True, buffer_bytes=buffer_bytes)[:], graphs)
            return
        with pytest.raises(ValueError, match=rf"[Gg]raph {number}\b|Counted within the graphs"):
            write(broken, folder, validate=True, buffer_bytes=buffer_bytes)
        assert not folder.exists()

    check()


def test_a_dataset_in_memory_is_written_with_its_transform(folder):
    def doubled(data):
        return Data(x=2 * data.x, edge_index=data.edge_index)

    graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n, dtype=torch.long)) for n in (1, 2)]
    store = write(InMemory(graphs), folder, transform=doubled)
    assert_same_graphs(store[:], [doubled(one) for one in graphs])
