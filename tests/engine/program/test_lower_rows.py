"""Rows at an index have torch's bits; an index out of range is reported before anything is written."""

import pytest
import torch
from torch import Tensor

from tests.support.chains import native
from tests.support.native_calls import calls_of, graph_of, has_torchs_bits, lowered, placed, run

pytestmark = native
ATEN = torch.ops.aten
TABLE = torch.randn(7, 3, 5)
INDEX = torch.tensor([3, 0, 6, 3, 3, 1, 0, 6])
ROWS = torch.randn(8, 3, 5)
ROUTES = {
    "index_select": lambda table, index, rows: table.index_select(0, index),
    "embedding": lambda table, index, rows: torch.nn.functional.embedding(index, table.view(7, 15)),
    "index": lambda table, index, rows: table[index],
    "index_add": lambda table, index, rows: table.index_add(0, index, rows),
    "index_add_": lambda table, index, rows: table.index_add_(0, index, rows),
    "put": lambda table, index, rows: table.index_put((index,), rows, accumulate=True),
    "put_": lambda table, index, rows: table.index_put_((index,), rows[0], accumulate=True),
    "embedding_backward": lambda table, index, rows: ATEN.embedding_dense_backward(rows.view(8, 15), index, 7, 3, False),
    "scatter_add_": lambda table, index, rows: table[:, 0, 0].clone().scatter_add_(0, index, rows.view(-1)[:9]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTES)
def test_rows_have_torchs_bits(name):
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
        for index in (INDEX, torch.stack([INDEX, INDEX], 1)[:, 0], INDEX.int()):
            is_whole = name == "embedding_backward" and not dtype.is_floating_point
            if not is_whole and not (name == "scatter_add_" and index.dtype is torch.int32):
                assert has_torchs_bits(ROUTES[name], TABLE.mul(9).to(dtype), index, ROWS.mul(9).to(dtype)), dtype


def test_other_dimensions_types_and_negative_numbers():
    index = torch.tensor([2, 0, 2, 2])
    for dim in (1, -1):
        assert has_torchs_bits(lambda x, index, dim=dim: x.index_select(dim, index), TABLE, index)
        assert has_torchs_bits(lambda x, i, dim=dim: x.index_add(dim, i, x.narrow(dim, 0, 1).expand_as(x.index_select(dim, i)).clone()), TABLE, index)
    assert has_torchs_bits(lambda x, index: x[index], TABLE, INDEX - 7)
    assert has_torchs_bits(lambda x, index: x[index], TABLE > 0, INDEX.view(2, 4))
    assert has_torchs_bits(lambda x, index: x[index], TABLE[:, 0], INDEX[:0])
    assert has_torchs_bits(lambda x, i: x.index_put((i,), x[:1]), TABLE, INDEX - 7)
    assert has_torchs_bits(lambda n, i: n.index_add(0, i, n[:1].expand(8)), torch.arange(7), INDEX)


@pytest.mark.parametrize("name", ROUTES)
def test_an_index_out_of_range_is_reported_and_nothing_is_written(name):
    for bad in (7, -8, 2**40):
        tables = [one.clone() for one in (TABLE, INDEX, ROWS)]
        graph = graph_of(ROUTES[name], *tables)
        tensors = placed(graph, *tables)
        tables[1][5] = bad
        (op,) = (op for op in graph.ops if not graph.is_view(op) and "clone" not in op.target)
        result = tensors[(op.writes or op.makes())[0]]
        before = result.clone()
        call = lowered(graph, op, tensors)
        assert call is not None
        assert run(call) != 0
        assert result.equal(before)


def test_what_does_not_lie_in_rows_is_left_to_torch():
    def none(function, *inputs: Tensor) -> bool:
        return None in calls_of(function, *inputs)

    table = torch.rand(5, 4)
    assert none(lambda x, i: x[i, i], table, torch.tensor([0, 1]))
    assert none(lambda x, i: x[:, i], table, torch.tensor([0, 1]))
    assert none(lambda x, i: x[i], table.t(), torch.tensor([0, 1]))
    assert none(lambda x, i: x.index_add(0, i, x[:2], alpha=2), table, torch.tensor([0, 1]))
    assert none(lambda x, i: ATEN.embedding_dense_backward(x, i, 7, 3, True), table, torch.tensor([0, 1, 2, 1, 0]))
    assert none(lambda x, i: x.index_add(0, i, x[:2]), table > 0, torch.tensor([0, 1]))
