"""What a writer leaves in its folder at every moment, and what it refuses to continue with."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from popgeo.atomic_write import write_atomically
from popgeo.data import FlatStore, Level, write
from popgeo.data.axes import GRAPHS as ONE_EACH
from popgeo.data.axes import levels_of
from popgeo.data.store import write_folder
from popgeo.data.store.describe import check_alike, describe, digest, plain
from popgeo.data.store.manifest import from_json, read_manifest
from popgeo.data.store.save_columns import blocks, extend
from popgeo.data.store.write_folder import FolderWriter
from tests.data.store.test_append_file import open_files
from tests.support.graphs import assert_same_graphs, graph, hetero_graph

GRAPHS = [graph(n, 2 * n, n) for n in (3, 1, 4, 2)]
STORE = FlatStore.from_dataset(GRAPHS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "some" / "store"


def begun(folder: Path, number: int = 2, **choices: object) -> None:
    """Write the first few graphs only."""
    with FolderWriter(folder, **choices) as writer:
        for part in blocks(STORE[:number], 0, 1):
            writer.append(part)


def test_a_finished_folder_holds_its_files_and_nothing_else(folder):
    STORE.save(folder, buffer_bytes=1)
    manifest = read_manifest(folder)
    assert sorted(os.listdir(folder)) == sorted(["manifest.json", *(file.file for file in manifest.files)])
    assert os.listdir(folder.parent) == ["store"]
    assert (manifest.num_graphs, manifest.transform, manifest.indices_checked) == (4, None, True)
    assert manifest.last_graph == digest(plain(STORE)[0], 3)
    written = json.loads((folder / "manifest.json").read_text())
    assert (written["format"], written["version"]) == ("popgeo flat store", 2)
    assert open_files(folder.parent) == []


def test_what_the_journal_notes_lies_on_disk_already(folder, monkeypatch):
    seen = []

    def look(path: Path, data: bytes) -> None:
        write_atomically(path, data)
        if path.name == "journal.json":
            for file in from_json(path).files:
                parts = [path.parent / file.file, *path.parent.glob(f"{file.file}.row*")]
                assert sum(part.stat().st_size for part in parts) == file.num_bytes, file.file
            seen.append(from_json(path).num_graphs)

    monkeypatch.setattr(write_folder, "write_atomically", look)
    STORE.save(folder, buffer_bytes=1)
    assert seen == [1, 2, 3, 4]


def test_a_folder_that_is_there_is_written_only_where_it_is_empty(tmp_path):
    taken, empty, file = tmp_path / "taken", tmp_path / "empty", tmp_path / "file"
    taken.mkdir()
    (taken / "other").touch()
    empty.mkdir()
    file.touch()
    for path in (taken, file):
        with pytest.raises(ValueError, match=f"{path} exists already. Pass a different folder, or remove it first"):
            STORE.save(path)
    STORE.save(empty)
    assert_same_graphs(FlatStore.open(empty)[:], GRAPHS)


def test_a_folder_is_written_by_one_at_a_time_and_let_go_of(folder):
    begun(folder)
    with FolderWriter(folder) as writer:
        assert writer.num_graphs == 2
        with pytest.raises(ValueError, match="Another process is writing") as error:
            FolderWriter(folder)
        assert sum(path.endswith("lock") for path in open_files(folder.parent)) == 1, error
    assert open_files(folder.parent) == []


def test_a_writer_that_refuses_to_go_on_leaves_no_file_open(folder):
    begun(folder)
    with pytest.raises(ValueError, match="begun with transform None and checked indices") as error:
        FolderWriter(folder, transform="other")
    assert open_files(folder.parent) == [], error
    part = folder.with_name("store.part")
    (part / "01-edge_index.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="left damaged") as error:
        FolderWriter(folder)
    assert open_files(folder.parent) == [], error


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({"transform": "T"}, {}, "begun with transform 'T' and checked indices"),
        ({"indices_checked": False}, {}, "begun with transform None and unchecked indices"),
        ({}, {"indices_checked": False}, "begun with transform None and checked indices"),
    ],
)
def test_going_on_asks_for_the_same(folder, first, then, message):
    begun(folder, **first)
    with pytest.raises(ValueError, match=message):
        FolderWriter(folder, **then)
    with FolderWriter(folder, **first) as writer:
        assert writer.num_graphs == 2


def test_the_levels_are_those_of_the_first_graphs(folder):
    with FolderWriter(folder) as writer:
        assert (writer.attributes, writer.num_graphs) == ((), 0)
        writer.check(STORE)
        writer.append(STORE)
        assert levels_of(writer.attributes) == {
            **{(None, name): Level.NODE for name in ("x", "pos", "z", "train_mask")},
            **{(None, name): Level.EDGE for name in ("edge_index", "edge_attr")},
            **{(None, name): ONE_EACH for name in ("y", "root_index", "charge", "weight")},
        }


def test_nothing_written_is_nothing_to_finish(folder):
    with FolderWriter(folder) as writer, pytest.raises(ValueError, match="There are no graphs to write"):
        writer.finish()


def test_a_source_is_known_again_by_the_last_graph_that_was_written(folder):
    begun(folder, 3)
    with FolderWriter(folder) as writer:
        writer.check_goes_on(FlatStore.from_dataset(GRAPHS[2:3]))
        writer.check_goes_on(FlatStore.from_dataset(GRAPHS[2:]))
        with pytest.raises(ValueError, match="begun with other graphs: number 2 differs"):
            writer.check_goes_on(FlatStore.from_dataset(GRAPHS[3:]))


def test_the_first_graphs_tell_together_what_attributes_belong_to(folder):
    graphs = [Data(x=torch.ones(n, 1), rings=torch.ones(k)) for n, k in ((2, 2), (3, 1), (4, 2))]
    assert write(graphs, folder).level("rings") is Level.GRAPH  # of the first graph alone they would be the nodes'


def test_attributes_get_rows_of_their_own_when_they_need_them(folder):
    graphs = [
        Data(x=torch.ones(2, 1), a=torch.ones(k, 2), b=torch.ones(m)) for k, m in ((1, 1), (1, 1), (1, 3), (4, 1))
    ]
    store = write(graphs, folder, buffer_bytes=1)
    assert_same_graphs(store[:], graphs)
    rows = {axis.name: pointer.tolist() for axis, pointer in store.row_pointers.items() if axis.name}
    assert rows == {"a": [0, 1, 2, 3, 7], "b": [0, 1, 2, 5, 6]}


def manifest_of(graphs, checked=True):
    return describe(*plain(FlatStore.from_dataset(graphs)), None, checked)


def other(**values: object) -> list[Data]:
    return [Data(**{"x": torch.ones(2, 3), "y": torch.ones(1), "name": "a", **values})]


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        (
            [hetero_graph(1, 1, 1, 1)],
            "Their data_class is torch_geometric.data.hetero_data.HeteroData, in graphs before",
        ),
        (other(num_nodes=2), r"Their states_num_nodes is \(None,\), in graphs before it is \(\)"),
        (other(z=1), r"They differ in the attributes \['z'\]. Set them everywhere"),
        (
            other(x=torch.ones(2, 4)),
            r"'x' is float32 \[rows, 4\] of a node, in graphs before it is float32 \[rows, 3\]",
        ),
        (other(x=torch.ones(2, 3).int()), r"'x' is int32 \[rows, 3\] of a node, in graphs before it is float32"),
        (other(y="text"), r"'y' is JSON, in graphs before it is float32 \[rows\] of a graph"),
        (other(name=1), r"'name' is int64 \[rows\] of a graph, in graphs before it is JSON"),
    ],
)
def test_graphs_that_cannot_stand_together_say_why(graphs, message):
    with pytest.raises(ValueError, match=message):
        check_alike(manifest_of(other()), manifest_of(graphs))


def test_graphs_that_are_alike_name_the_attributes_that_now_have_rows_of_their_own():
    assert check_alike(manifest_of(other()), manifest_of(other(x=torch.ones(5, 3)))) == []
    (axis,) = check_alike(manifest_of(other()), manifest_of(other(y=torch.ones(4))))
    assert (axis.level, axis.store, axis.name) == (Level.GRAPH, None, "y")


def test_types_of_the_other_graphs_are_compared():
    graphs = [hetero_graph(1, 2, 1, 1), hetero_graph(1, 2, 1, 1)]
    graphs[1]["c"].x = torch.ones(1)
    graphs[1]["a", "likes", "c"].edge_index = torch.zeros(2, 1).long()
    with pytest.raises(ValueError, match=r"Their node_types is \('a', 'b', 'c'\), in graphs before it is \('a', 'b'\)"):
        check_alike(manifest_of(graphs[:1]), manifest_of(graphs[1:]))


def test_files_are_named_for_their_attributes_as_far_as_names_go():
    graphs = [
        Data(x=torch.ones(1, 1), **{"a b/c" + 50 * "d": torch.ones(1)}, name="a", root_index=torch.zeros(1).long())
    ]
    manifest = manifest_of(graphs, checked=False)
    assert [file.file for file in manifest.files] == [
        "00-x.bin", f"01-a-b-c{35 * 'd'}.bin", "02-name.json", "03-root_index.bin", "03-root_index.increments.bin",
        "rows-00.bin", "rows-01.bin", "rows-02.bin", "rows-03.bin",
    ]  # fmt: skip
    assert (manifest.num_graphs, manifest.transform, manifest.indices_checked) == (0, None, False)


def test_two_graphs_have_one_checksum_only_where_all_their_numbers_agree():
    block = plain(STORE)[0]
    sums = [digest(block, i) for i in range(4)]
    assert len(set(sums)) == 4
    assert [digest(plain(FlatStore.from_dataset([one]))[0], 0) for one in GRAPHS] == sums
    changed = [one.clone() for one in GRAPHS]
    for i, name in enumerate(("x", "edge_attr", "y", "name")):
        changed[i][name] = "other" if name == "name" else changed[i][name] + 1
    assert not set(sums) & {digest(plain(FlatStore.from_dataset(changed))[0], i) for i in range(4)}


def test_flat_graphs_go_on_behind_what_is_written(folder):
    begun(folder, 1)
    with FolderWriter(folder) as writer:
        extend(writer, partial(blocks, STORE, max_bytes=1 << 20), 4, False)
    assert_same_graphs(FlatStore.open(folder, verify=True)[:], GRAPHS)


@pytest.mark.parametrize("name", ["thesis.pdf", "notes.row.txt", "00-x.bin.rows", "rows-0.bin", "data/x.row1", ".env"])
def test_a_folder_of_a_users_own_is_left_as_it_is(folder: Path, name: str):
    held = folder.with_name("store.part") / name
    held.parent.mkdir(parents=True)
    held.write_text("years of work")
    with pytest.raises(ValueError, match=r"store\.part contains .*Move the folder"):
        write(GRAPHS, folder, progress_bar=False)
    assert held.read_text() == "years of work"
    assert os.listdir(folder.parent) == ["store.part"]


def test_what_a_writer_left_before_its_first_journal_is_written_again(folder: Path):
    with FolderWriter(folder) as writer:
        writer._open(describe(*plain(STORE), None, True))
    part = folder.with_name("store.part")
    assert any(path.name.startswith("00-") for path in part.iterdir())
    (part / ".popgeo-lock").touch()
    (part / f"journal.json.popgeo-1-{'0' * 16}.part").touch()
    assert_same_graphs(write(GRAPHS, folder, progress_bar=False)[:], GRAPHS)


def test_only_parts_of_the_store_are_removed_at_its_end(folder: Path):
    begun(folder)
    (folder.with_name("store.part") / "mine.row1").write_text("mine")
    write(GRAPHS, folder, progress_bar=False)
    assert (folder / "mine.row1").read_text() == "mine"
    assert not list(folder.glob("0*.row*"))
