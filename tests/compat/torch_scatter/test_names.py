"""torch_scatter's functions under their own names. `tests/ops` tests each function in detail."""

import pytest
import torch

from popgeo import ipu
from popgeo.compat import torch_scatter

INDEX = torch.tensor([0, 0, 2, 2, 2])
SRC = torch.tensor([1.0, 5.0, -2.0, 4.0, 7.0])


def test_reductions_by_a_sorted_index_are_those_by_hand():
    expected = {"sum": [6, 0, 9], "add": [6, 0, 9], "mean": [3, 0, 3], "min": [1, 0, -2], "max": [5, 0, 7]}
    for name, values in expected.items():
        made = getattr(torch_scatter, f"segment_{name}_coo")(SRC, INDEX, dim_size=3)
        assert (made[0] if isinstance(made, tuple) else made).tolist() == values
    assert torch_scatter.segment_max_coo(SRC, INDEX, dim_size=3)[1].tolist() == [1, 5, 4]


def test_every_name_of_the_package_is_there():
    scatter = {"sum", "add", "mean", "mul", "min", "max", "std", "logsumexp", "softmax", "log_softmax"}
    segment = {f"segment_{name}_{kind}" for name in ("sum", "add", "mean", "min", "max") for kind in ("csr", "coo")}
    names = {f"scatter_{name}" for name in scatter} | segment
    names |= {"scatter", "segment_csr", "segment_coo", "gather_csr", "gather_coo"}
    assert all(callable(getattr(torch_scatter, name)) for name in names)


def test_a_compiled_step_asks_for_the_length():
    with pytest.raises(ValueError, match="pass dim_size="):
        ipu.compile(torch_scatter.scatter_mean, [SRC, INDEX])
    compiled = ipu.compile(lambda x, i: torch_scatter.scatter(x, i, dim_size=3, reduce="max"), [SRC, INDEX])
    assert compiled(SRC, INDEX).tolist() == [5, 0, 7]
