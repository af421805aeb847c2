"""Manifests that a stranger has made up, with checksums that fit: refused, and no file elsewhere touched."""

import copy
import json
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader
from popgeo.data import FlatStore, write
from popgeo.data.store.mapped import map_file
from popgeo.data.store.save_columns import blocks
from popgeo.data.store.stored_list import StoredList
from popgeo.data.store.write_folder import FolderWriter
from popgeo.folder_lock import LOCK
from tests.support import quick_python
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
    """Return a manifest with a different value in one place, and a new checksum."""
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
    refused = []
    for place in chance.sample(chosen, min(len(chosen), 120)):
        path.write_bytes(put(content, place, chance.choice(ODD)))
        try:
            store = FlatStore.open(tmp_path / "store")
            for batch in FixedSizeDataLoader(store, batch_size=3):
                assert batch.num_nodes > 0
            assert repr(store[0])
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 60
    assert [words for words in refused if str(tmp_path / "store") not in words] == []


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
        for part in blocks(graphs[:2], 0, 1):
            writer.append(part)
    folder = tmp_path / "store.part"
    bystander.write_bytes(bytes(1400))
    journal = json.loads((folder / "journal.json").read_text())
    name = outside.format(tmp_path)
    if outside == "link":
        (folder / "link").symlink_to(bystander)
    place = ("attributes", 0, "values", "file")
    (folder / "journal.json").write_bytes(put(journal, place, name))
    with pytest.raises(ValueError, match=r"not an array in a file of the folder|is a link"):
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
        with pytest.raises(ValueError, match="not an array in a file of the folder"):
            FlatStore.open(tmp_path / "whole")


def test_the_rows_of_an_attribute_are_counted_by_a_name(tmp_path):
    write([graph(2, 3)], tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    path.write_bytes(put(json.loads(path.read_text()), ("row_pointers", 0, 0, 2), [None, None]))
    with pytest.raises(ValueError, match=r"\[None, None\] is not a name of an attribute"):
        FlatStore.open(tmp_path / "store")


@pytest.mark.parametrize(
    "text", [b"[" * 300_000 + b"]" * 300_000, b'{"a":' * 300_000 + b"1" + b"}" * 300_000, b"[1", b"\xff"]
)
def test_a_value_that_is_not_json_is_an_error_that_names_its_file(tmp_path, text):
    """Its file has the checksums that belong to it: whoever made it up wrote them, too."""
    ends = torch.tensor([0, len(text)])
    path = tmp_path / "00-name.bin"
    path.write_bytes(text)
    values = StoredList(map_file(path, torch.uint8, [len(text)]), ends)
    with pytest.raises(ValueError, match=r"00-name.bin is not valid JSON"):
        values[0]


LIMITED = """
import resource, sys
from pathlib import Path
from popgeo.data import FlatStore
before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + (400 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for text in sorted(Path(sys.argv[1]).glob("*.json")):
    text.replace(Path(sys.argv[1]) / "store" / "manifest.json")
    try:
        store = FlatStore.open(Path(sys.argv[1]) / "store")
        store[0]
        print("opened", text.name)
    except ValueError as error:
        print("refused" if sys.argv[1] in str(error) else f"unnamed {error}")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits are those of Linux")
def test_declared_counts_take_no_memory_and_no_time(tmp_path):
    write([graph(2, 3), graph(4, 1)], tmp_path / "store")
    content = json.loads((tmp_path / "store" / "manifest.json").read_text())
    wrong = [put(content, ("num_graphs",), number) for number in (10**12, 2**62, 10**300, -1)]
    for at, entry in enumerate(content["attributes"]):
        rank = len(entry["values"]["shape"])
        for shape in ([10**12] * rank, [0, 2**62, 2**62][:rank], [2**62] + [0] * (rank - 1), [-1] * rank, [1] * 10**5):
            wrong.append(put(content, ("attributes", at, "values", "shape"), shape))
        wrong.append(put(content, ("attributes", at, "values", "crc32"), [0] * 10**6))
        wrong.append(put(content, ("attributes", at, "dim"), 10**9))
    wrong.append(put(content, ("block_sums", "shape"), [10**12]))
    for number, text in enumerate(wrong):
        (tmp_path / f"{number:03}.json").write_bytes(text)
    command = [*quick_python.command(), "-c", LIMITED, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["refused"] * len(wrong)


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from torch_geometric.data import Data
from popgeo.data import write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
graphs = [Data(x=torch.full((1000, 4), float(n)), edge_index=torch.zeros(2, 1).long()) for n in range(20)]
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    print(float(write(graphs, Path(sys.argv[1]), buffer_bytes=40_000)[19].x[0, 0]))
except OSError as error:
    print(error.filename)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits are those of Linux")
def test_a_writer_on_a_full_disk_names_the_folder_and_goes_on_later(tmp_path):
    command = [*quick_python.command(), "-c", FULL, str(tmp_path / "store")]
    for limit in (100_000, 2000):
        ran = subprocess.run([*command, str(limit)], capture_output=True, text=True, timeout=120, check=True)
        assert ran.stdout.startswith(str(tmp_path / "store.part")), ran
        assert not (tmp_path / "store").exists()
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "19.0", ran
