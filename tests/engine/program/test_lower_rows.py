"""Rows at an index have torch's bits; an index out of range is reported before anything is written."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.chains import native
from tests.support.native_calls import Single, has_torchs_bits, is_left_to_torch, run

pytestmark = native
INDEX = torch.tensor([3, 0, 6, 3, 3, 1, 0, 6])
NAMES = (
    "index_select.default", "embedding.default", "index.Tensor", "index_add.default", "index_add_.default",
    "index_put.default", "index_put_.default", "scatter_add.default", "scatter_add_.default",
    "embedding_dense_backward.default",
)  # fmt: skip


def arguments(name: str, table: Tensor, index: Tensor, rows: Tensor) -> tuple[Any, ...]:
    """Return the arguments of an operation on a table and on rows, each of shape [num_rows, 3, 5]."""
    flat_table, flat_rows = table.view(len(table), 15), rows.view(len(rows), 15)
    return {
        "index_select": (table, 0, index), "embedding": (flat_table, index), "index": (table, [index]),
        "index_add": (table, 0, index, rows), "index_put": (table, [index], rows, True),
        "scatter_add": (flat_table[:, 0].clone(), 0, index, flat_rows[:, 1].repeat(2)),
        "embedding_dense_backward": (flat_rows, index, len(table), 3, False),
    }[name.split(".")[0].removesuffix("_")]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_torchs_bits(name):
    table, rows = torch.randn(7, 3, 5) * 9, torch.randn(8, 3, 5) * 9
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
        for index in (INDEX, torch.stack([INDEX, INDEX], 1)[:, 0], INDEX.int(), INDEX[:0]):
            is_refused = ("scatter" in name and index.dtype is torch.int32) or (
                "backward" in name and not dtype.is_floating_point
            )
            if is_refused:
                continue
            given = arguments(name, table.to(dtype), index, rows[: len(index)].to(dtype))
            assert has_torchs_bits(f"aten.{name}", *given), (dtype, index)


def test_other_dimensions_and_negative_numbers():
    table, index = torch.randn(7, 3, 5), torch.tensor([2, 0, 2, 2])
    for dim in (1, -1):
        assert has_torchs_bits("aten.index_select.default", table, dim, index)
        source = torch.randn(7, 4, 5) if dim == 1 else torch.randn(7, 3, 4)
        assert has_torchs_bits("aten.index_add.default", table, dim, index, source)
    for negative in (INDEX - 7, INDEX.view(2, 4)):
        assert has_torchs_bits("aten.index.Tensor", table > 0, [negative])
        assert has_torchs_bits("aten.index.Tensor", table[:, 0], [negative])
        assert has_torchs_bits("aten.index_put.default", table, [negative], table[0], True)
        assert has_torchs_bits("aten.index_put.default", table, [negative], table[0])
    assert has_torchs_bits("aten.index_add.default", torch.arange(7), 0, INDEX, torch.tensor(1).expand(8))


def test_many_rows_are_added_in_the_order_of_the_index():
    index, rows = torch.randint(0, 20, (20000,)), torch.randn(20000, 15)
    assert has_torchs_bits("aten.index_add.default", torch.randn(20, 15), 0, index, rows)
    assert has_torchs_bits("aten.index_put.default", torch.randn(20, 15), [index], rows, True)
    assert has_torchs_bits("aten.embedding_dense_backward.default", rows, index, 20, -1, False)
    assert has_torchs_bits("aten.index_select.default", torch.randn(20, 150), 0, index)


@pytest.mark.parametrize("name", NAMES)
def test_an_index_out_of_range_is_reported_and_nothing_is_written(name):
    for bad in (7, -8, 2**40):
        table, index, rows = torch.randn(7, 3, 5), INDEX.clone(), torch.randn(8, 3, 5)
        single = Single(f"aten.{name}", *arguments(name, table, index, rows))
        call, before = single.call(), single.result.clone()
        index[5] = bad
        assert run(call) != 0
        assert torch.equal(single.result.nan_to_num(), before.nan_to_num())


def test_what_does_not_lie_in_rows_is_left_to_torch():
    table, index = torch.rand(5, 4), torch.tensor([0, 1])
    assert is_left_to_torch("aten.index.Tensor", table, [index, index])
    assert is_left_to_torch("aten.index.Tensor", table, [None, index])
    assert is_left_to_torch("aten.index.Tensor", table, [table[:, 0] > 0.5])
    assert is_left_to_torch("aten.index_select.default", table.t(), 0, index)
    assert is_left_to_torch("aten.index_add.default", table, 0, index, table[:2], alpha=2)
    assert is_left_to_torch("aten.index_add.default", table > 0, 0, index, table[:2] > 0)
    assert is_left_to_torch("aten.embedding_dense_backward.default", table, torch.tensor([0, 1, 2, 1, 0]), 7, 3, True)
    assert is_left_to_torch("aten.index_select.default", table, 0, index, result=table[3:])
