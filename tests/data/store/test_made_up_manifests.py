"""Manifests that a stranger has made up, with checksums that fit: refused, and no file elsewhere touched."""

import copy
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader
from popgeo.data import FlatStore, write
from popgeo.data.store.save_columns import cut
from popgeo.data.store.write_folder import FolderWriter
from popgeo.folder_lock import LOCK
from tests.support.graphs import graph, hetero_graph

ODD = [None, True, -1, 0, 1, 2**31, 2**62, 2**80, 1.5, float("nan"), "", "..", "../x", "/etc/passwd", "a\0b", "float64"]
ODD += [0, "int8", "load", "Tensor", [], [[]], [None, 1, "a"], {}, {"file": "x"}, [1, 2, 3], "node", "x" * 300]


def places(content: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where each value of a nested JSON stands."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def put(content: dict, place: tuple, value: Any) -> bytes:
    """A manifest with another value in one place, and its own checksum."""
    content = copy.deepcopy(content)
    del content["crc32"]
    at = content
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return json.dumps({**content, "crc32": zlib.crc32(json.dumps(content, sort_keys=True).encode())}).encode()


@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous"])
def test_odd_values_in_a_manifest_are_an_error_that_says_so_or_change_nothing_that_is_read(tmp_path, kind):
    chance = random.Random(kind)
    graphs = [graph(n, 2 * n, n) if kind == "homogeneous" else hetero_graph(n, 2, 3, 1, n) for n in (3, 1, 4)]
    write(graphs, tmp_path / "store", sort_edges=True)
    path = tmp_path / "store" / "manifest.json"
    content = json.loads(path.read_text())
    chosen = [place for place in places(content) if place != ("crc32",)]
    refused = 0
    for place in chance.sample(chosen, min(len(chosen), 120)):
        path.write_bytes(put(content, place, chance.choice(ODD)))
        try:
            store = FlatStore.open(tmp_path / "store")
            for batch in FixedSizeDataLoader(store, batch_size=3):
                assert batch.num_nodes > 0
            assert repr(store[0])
        except ValueError:
            refused += 1
    assert refused > 60


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{}", b"1", b"\xff", b'{"crc32": 1}', b'{"format": ["a"]}', b"NaN"])
def test_a_manifest_that_is_none_is_an_error_that_names_it(tmp_path, text):
    write([graph(2, 3)], tmp_path / "store")
    (tmp_path / "store" / "manifest.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        FlatStore.open(tmp_path / "store")


@pytest.mark.parametrize("outside", ["../bystander", "{}/bystander", "link"])
def test_no_name_leads_out_of_the_folder_of_a_store(tmp_path, outside):
    """A journal that names a file elsewhere would have it cut off, a manifest would have it read."""
    bystander = tmp_path / "bystander"
    graphs = FlatStore.from_dataset([Data(x=torch.full((40, 1), float(n))) for n in range(3)])
    with FolderWriter(tmp_path / "store") as writer:
        for part in cut(graphs[:2], 1)(0, False):
            writer.append(part)
    folder = tmp_path / "store.part"
    bystander.write_bytes(bytes(1400))
    journal = json.loads((folder / "journal.json").read_text())
    name = outside.format(tmp_path)
    if outside == "link":
        (folder / "link").symlink_to(bystander)
    place = ("attributes", 0, "values", "file")
    (folder / "journal.json").write_bytes(put(journal, place, name))
    with pytest.raises(ValueError, match=r"no array in a file of the folder|is a link"):
        graphs.save(tmp_path / "store", progress_bar=False)
    assert bystander.read_bytes() == bytes(1400)
    (folder / LOCK).unlink(missing_ok=True)
    (folder / LOCK).symlink_to(bystander)
    with pytest.raises(ValueError, match="lock is a link"):
        graphs.save(tmp_path / "store", progress_bar=False)
    assert bystander.read_bytes() == bytes(1400)
    if outside != "link":
        graphs.save(tmp_path / "whole", progress_bar=False)
        path = tmp_path / "whole" / "manifest.json"
        path.write_bytes(put(json.loads(path.read_text()), place, name))
        with pytest.raises(ValueError, match="no array in a file of the folder"):
            FlatStore.open(tmp_path / "whole")


def test_the_rows_of_an_attribute_are_counted_by_a_name(tmp_path):
    write([graph(2, 3)], tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    path.write_bytes(put(json.loads(path.read_text()), ("row_pointers", 0, 0, 2), [None, None]))
    with pytest.raises(ValueError, match=r"\[None, None\] is no name of an attribute"):
        FlatStore.open(tmp_path / "store")
