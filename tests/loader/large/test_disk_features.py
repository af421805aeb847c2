"""Features on disk: rows in the requested order, from any format, in less memory than the file takes."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from popgeo import FixedSizeNeighborLoader, FixedSizeOptions
from popgeo.loader import DiskFeatures
from tests.support import quick_python
from tests.support.large_graphs import random_graph
from tests.support.stores import in_stores

X, Y = np.random.default_rng(0).random((60, 3), dtype=np.float32), np.arange(60)
INDEX = torch.tensor([59, 0, 7, 7, 31])


def tables(folder):
    """Return the same features in every format that this Python can write."""
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    made = {"npy": {"x": folder / "x.npy", "y": folder / "y.npy"}, "arrays": {"x": torch.from_numpy(X), "y": Y}}
    try:
        import pyarrow as pa
        from pyarrow import feather, parquet
    except ImportError:
        return made
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 3), "y": Y})
    feather.write_feather(table, folder / "plain.arrow", compression="uncompressed", chunksize=25)
    feather.write_feather(table, folder / "packed.arrow", compression="lz4", chunksize=25)
    parquet.write_table(table, folder / "nodes.parquet", row_group_size=25)
    return made | {file: folder / file for file in ("plain.arrow", "packed.arrow", "nodes.parquet")}


def test_every_format_gives_the_rows_asked_for(tmp_path):
    for files in tables(tmp_path).values():
        features = pickle.loads(pickle.dumps(DiskFeatures({None: files})))
        for index, rows in ((INDEX, INDEX.numpy()), (None, np.arange(60)), (slice(3, 9, 2), np.arange(3, 9, 2))):
            assert np.array_equal(features.get_tensor(group_name=None, attr_name="x", index=index), X[rows])
            assert np.array_equal(features.get_tensor(group_name=None, attr_name="y", index=index), Y[rows])
        assert features.get_tensor_size(group_name=None, attr_name="x") == (60, 3)
        with pytest.raises(ValueError, match=r"contains 60; indices must be in 0 \.\.\. 59"):
            features.get_tensor(group_name=None, attr_name="x", index=torch.tensor([60]))


def test_a_loader_gives_from_disk_what_it_gives_from_memory(tmp_path):
    data, _, graph = in_stores(random_graph())
    np.save(tmp_path / "x.npy", data.x.numpy())
    del data.y, data.edge_attr
    features = DiskFeatures({None: {"x": tmp_path / "x.npy"}})
    how = {"batch_size": 7, "seed": 0, "fixed_size_options": FixedSizeOptions(61, 240)}
    for workers in (0, 1):
        again = FixedSizeNeighborLoader((features, graph), [3], num_workers=workers, **how)
        loaders = (FixedSizeNeighborLoader(data, [3], **how), again)
        assert all(torch.equal(a.x, b.x) for a, b in zip(*loaders, strict=True))


def test_a_column_that_is_no_rows_of_numbers_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[stores]'")
    from pyarrow import parquet

    for column, message in (([1, None], "has 1 nulls"), ([[1], [2, 3]], "lists of different"), (["a", "b"], "string")):
        path = tmp_path / "odd.parquet"
        parquet.write_table(pa.table({"x": column}), path)
        with pytest.raises(ValueError, match=message):
            DiskFeatures({None: path})
    assert not list(tmp_path.glob("*.columns*"))


LIMITED = """
import resource, sys
import numpy as np, torch
from popgeo.loader import DiskFeatures
features = DiskFeatures({None: {"x": sys.argv[1]}})
data = next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data + (192 << 20),) * 2)
n = features.get_tensor_size(group_name=None, attr_name="x")[0]
for seed in range(4):
    index = torch.from_numpy(np.random.default_rng(seed).integers(n, size=2000))
    assert torch.equal(features.get_tensor(group_name=None, attr_name="x", index=index)[:, 0].long(), index % 7)
try:
    features.get_tensor(group_name=None, attr_name="x", index=None)
except (MemoryError, RuntimeError):
    print("larger than memory")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on a process's memory is Linux's")
def test_features_may_be_larger_than_the_memory_of_the_process(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(1 << 18, 256))
    rows[:, 0] = np.arange(len(rows)) % 7
    del rows
    done = subprocess.run([*quick_python.command(), "-c", LIMITED, tmp_path / "x.npy"], capture_output=True, text=True)
    assert done.stdout.strip() == "larger than memory", done.stderr


def test_an_index_selects_the_rows_that_it_selects_of_a_tensor():
    x = torch.arange(40.0).view(20, 2)
    features = DiskFeatures({None: {"x": x.numpy()}})
    numbers, mask = torch.tensor([4, 4, 0]), torch.arange(20) % 3 == 0
    for index in (slice(3, 9, 2), numbers, mask, ~mask & mask, slice(None)):
        assert torch.equal(features.get_tensor(group_name=None, attr_name="x", index=index), x[index])
    with pytest.raises(IndexError, match="boolean index did not match"):
        features.get_tensor(group_name=None, attr_name="x", index=mask[:19])
