"""What a writer that goes on asks of its source, and which sources are taken whole."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FlatStore, open_dataset, write
from popgeo.data.open_dataset import GraphSizes
from popgeo.data.sort_edges import sort_edges
from popgeo.data.store.manifest import read_manifest
from popgeo.data.store.save_columns import blocks, extend
from popgeo.data.store.write_folder import FolderWriter
from tests.support.graphs import assert_same_graphs
from tests.support.loaders import OnDisk

GRAPHS = [Data(x=torch.full((n, 1), float(n)), edge_index=torch.zeros(2, 1).long()) for n in (3, 1, 4, 2)]
STORE = FlatStore.from_dataset(GRAPHS)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the folder of an unfinished store with three graphs."""
    with FolderWriter(tmp_path / "store") as writer:
        for part in blocks(STORE[:3], 0, 1):
            writer.append(part)
    return tmp_path / "store"


def test_a_source_with_fewer_or_other_graphs_is_refused(begun):
    for ids, message in (([0, 1], "begun with more graphs: 3"), ([0, 1, 3], "number 2 differs")):
        with FolderWriter(begun) as writer, pytest.raises(ValueError, match=message):
            extend(writer, partial(blocks, STORE.view(ids), max_bytes=1 << 20), len(ids), False)
    with FolderWriter(begun) as writer, pytest.raises(ValueError, match="number 2 differs, or the order of its edges"):
        extend(writer, partial(blocks, sort_edges(STORE), max_bytes=1 << 20), 4, False)
    with FolderWriter(begun) as writer:
        extend(writer, partial(blocks, STORE, max_bytes=1 << 20), None, False)
    assert_same_graphs(FlatStore.open(begun, verify=True)[:], GRAPHS)


def test_a_writer_that_was_stopped_before_the_last_name_only_gives_it(begun, monkeypatch):
    replace = os.replace

    def stopped(source: object, target: object) -> None:
        if target == begun:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, FolderWriter(begun) as writer:
        patch.setattr(os, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            extend(writer, partial(blocks, STORE, max_bytes=1 << 20), 4, False)
    with FolderWriter(begun) as writer:
        assert (writer.is_complete, writer.num_graphs) == (True, 4)
        extend(writer, partial(blocks, STORE[:1], max_bytes=1), 1, False)
    assert_same_graphs(FlatStore.open(begun, verify=True)[:], GRAPHS)


@pytest.mark.parametrize(("validate", "checked"), [(None, True), (True, True), (False, False)])
def test_whether_edges_were_looked_at_is_noted(tmp_path, validate, checked):
    write(GRAPHS, tmp_path / "store", validate=validate)
    assert read_manifest(tmp_path / "store").indices_checked is checked


def test_edges_of_which_the_ends_are_not_known_end_nowhere():
    graphs = [Data(x=torch.ones(n, 1), edge_attr=torch.ones(2)) for n in (2, 3)]
    assert sort_edges(FlatStore.from_dataset(graphs)).row_ends[None].tolist() == [0] * 5


def test_a_dataset_that_makes_its_graphs_is_measured_piece_by_piece(monkeypatch):
    taken = []

    class Recorded(FlatStore):
        @classmethod
        def from_dataset(cls, dataset, **choices):
            taken.append(len(dataset))
            return FlatStore.from_dataset(dataset, **choices)

    monkeypatch.setattr(open_dataset, "FlatStore", Recorded)
    monkeypatch.setattr(open_dataset, "_MEASURED_AT_ONCE", 16)
    assert len(GraphSizes(OnDisk(), progress_bar=False).values) == 40
    assert len(GraphSizes([GRAPHS[0]] * 17, progress_bar=False).values) == 17
    assert taken == [16, 16, 8, 16, 1]


def test_levels_that_are_stated_hold_for_a_stream_too(tmp_path):
    graphs = [Data(x=torch.ones(n, 1), rings=torch.ones(n)) for n in (2, 3)]
    assert write(iter(graphs), tmp_path / "stated", levels={"rings": "graph"}).level("rings").value == "graph"
    assert write(iter(graphs), tmp_path / "inferred").level("rings").value == "node"
    assert FlatStore.open(tmp_path / "inferred").row_ends is None
