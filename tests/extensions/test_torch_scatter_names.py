"""torch_scatter's functions under their own names. `tests/ops` tests each function in detail."""

import importlib
import pickle
import sys

import pytest
import torch

from popgeo import ipu

INDEX = torch.tensor([0, 0, 2, 2, 2])
SRC = torch.tensor([1.0, 5.0, -2.0, 4.0, 7.0])


def test_reductions_by_a_sorted_index_are_those_by_hand(torch_scatter):
    expected = {"sum": [6, 0, 9], "add": [6, 0, 9], "mean": [3, 0, 3], "min": [1, 0, -2], "max": [5, 0, 7]}
    for name, values in expected.items():
        made = getattr(torch_scatter, f"segment_{name}_coo")(SRC, INDEX, dim_size=3)
        assert (made[0] if isinstance(made, tuple) else made).tolist() == values
    assert torch_scatter.segment_max_coo(SRC, INDEX, dim_size=3)[1].tolist() == [1, 5, 4]


def test_every_name_of_the_package_is_there_and_can_be_pickled(torch_scatter):
    scatter = {"sum", "add", "mean", "mul", "min", "max", "std", "logsumexp", "softmax", "log_softmax"}
    segment = {f"segment_{name}_{kind}" for name in ("sum", "add", "mean", "min", "max") for kind in ("csr", "coo")}
    names = {f"scatter_{name}" for name in scatter} | segment
    names |= {"scatter", "segment_csr", "segment_coo", "gather_csr", "gather_coo"}
    for function in (getattr(torch_scatter, name) for name in names):
        assert pickle.loads(pickle.dumps(function)) is function
    assert torch_scatter.composite.scatter_std is torch_scatter.scatter_std


def test_a_compiled_step_asks_for_the_length(torch_scatter):
    with pytest.raises(ValueError, match="pass dim_size="):
        ipu.compile(torch_scatter.scatter_mean, [SRC, INDEX])
    compiled = ipu.compile(lambda x, i: torch_scatter.scatter(x, i, dim_size=3, reduce="max"), [SRC, INDEX])
    assert compiled(SRC, INDEX).tolist() == [5, 0, 7]


PROGRAM = """
from torch import Tensor
from torch_scatter import scatter_max, segment_csr

def largest_and_mean(src: Tensor, index: Tensor, indptr: Tensor) -> Tensor:
    return scatter_max(src, index, dim=0, dim_size=3)[0] + segment_csr(src, indptr, reduce="mean")
"""


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_saved_script_calls_the_functions_and_has_their_gradients(tmp_path, monkeypatch):
    (tmp_path / "scripted_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("scripted_program").largest_and_mean
    monkeypatch.delitem(sys.modules, "scripted_program")
    torch.jit.script(function).save(str(tmp_path / "script.pt"))
    src = SRC.clone().requires_grad_()
    out = torch.jit.load(str(tmp_path / "script.pt"))(src, INDEX, torch.tensor([0, 2, 2, 5]))
    assert out.tolist() == [8, 0, 10]
    out.sum().backward()
    torch.testing.assert_close(src.grad, torch.tensor([1 / 2, 3 / 2, 1 / 3, 1 / 3, 4 / 3]))
