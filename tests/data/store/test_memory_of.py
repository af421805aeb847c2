"""What is expanded, sliced or one graph alone is written as it is; files have the permissions of the umask."""

import os

import pytest
import torch
from torch_geometric.data import Data

from popgeo.atomic_write import write_atomically
from popgeo.data import FlatStore, write

TABLE = torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([2.0]).expand(1),
        torch.ones(()).expand(1),
        TABLE[1:2, 1],
        TABLE[:1, :1].T[0],
        torch.tensor([7]).bfloat16(),
    ],
    ids=["expanded", "of nothing", "a column", "turned", "bfloat16"],
)
def test_a_label_of_any_stride_is_written(tmp_path, y):
    one = torch.zeros(1).as_strided((1,), (0,)).copy_(y.float()).to(y.dtype)
    for number, label in enumerate((y, one)):
        graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=label)
        store = write([graph], tmp_path / f"store{number}")
        assert torch.equal(FlatStore.open(tmp_path / f"store{number}")[0].y, y)
        assert len(store) == 1


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
def test_files_have_the_permissions_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "note", b"one")
    finally:
        os.umask(before)
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o666 & ~mask
    (tmp_path / "note").chmod(0o640)
    write_atomically(tmp_path / "note", b"two")
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o640
