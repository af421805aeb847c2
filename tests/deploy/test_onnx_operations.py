"""Operations that torch's converter to ONNX silently gets wrong are correct in popgeo's files."""

import json
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo.deploy.onnx_program import onnx_bytes, open_onnx, read_notes_of_onnx
from popgeo.deploy.plain_operations import plain_module
from popgeo.sealed_file import SEAL_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


class Cases(nn.Module):
    """A module of several functions of the same tensors, so that one file has all of them."""

    def __init__(self, functions: dict[str, Callable[..., Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor, index: Tensor, large: Tensor, angle: Tensor) -> dict[str, Tensor]:
        given = {"x": x, "index": index, "large": large, "angle": angle}
        return {name: function(**given) for name, function in self.functions.items()}


CASES: dict[str, Callable[..., Tensor]] = {
    "sums of rows": lambda x, index, **_: x.new_zeros(7, 4).index_add(0, index, x),
    "sums of places": lambda x, index, **_: x.new_zeros(7, 4).index_put((index - 7,), x, accumulate=True),
    "means of rows": lambda x, index, **_: x.new_ones(7, 4).scatter_reduce(
        0, index.unsqueeze(1).expand_as(x), x, "mean", include_self=False
    ),
    "a small number added": lambda x, **_: (x * 0 + 1e-8).sqrt(),
    "quotients of large integers": lambda large, **_: large // 7,
    "quotients of negative integers": lambda large, **_: torch.div(-large, 7, rounding_mode="trunc"),
    "angles on the cut": lambda angle, **_: torch.atan2(angle.abs() * 0, angle),
    "angles off the cut": lambda x, **_: torch.atan2(x, x.flip(0)),
    "order among equals": lambda index, **_: index.sort(stable=True, descending=True).indices,
    "the derivative of silu": lambda x, **_: torch.ops.aten.silu_backward(x, x),
    "what was given": lambda x, **_: x,
}


@pytest.fixture(scope="module")
def made() -> tuple[dict[str, Tensor], dict[str, Tensor], bytes]:
    draw = torch.Generator().manual_seed(0)
    given = {
        "x": torch.randn(50, 4, generator=draw),
        "index": torch.randint(7, (50,), generator=draw),
        "large": 2**24 + torch.randint(1 << 40, (50,), generator=draw),
        "angle": torch.tensor([-1.0, 2.0, -3.0, 0.5]),
    }
    cases = Cases(CASES)
    notes = json.dumps({"programs": [{"inputs": dict.fromkeys(given), "results": dict.fromkeys(CASES)}]})
    data = onnx_bytes([plain_module(cases, given)], [given], notes)
    assert read_notes_of_onnx(data + b"0" * SEAL_BYTES) == notes
    (run,) = open_onnx(data + b"0" * SEAL_BYTES, [given])
    return cases(**given), dict(zip(CASES, run(*given.values()), strict=True)), data


@pytest.mark.parametrize("name", CASES)
def test_operations_are_those_of_torch(made, name):
    wanted, found, _ = made
    assert_close(found[name], wanted[name])


def test_no_sum_is_one_that_onnxruntime_spreads_over_threads(made):
    nodes = onnx.load_model_from_string(made[2] + b"0" * SEAL_BYTES).graph.node
    assert any(node.op_type == "ScatterElements" for node in nodes)
    reductions = [one.s for node in nodes if node.op_type == "ScatterND" for one in node.attribute]
    assert set(reductions) <= {b"none"}


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"Files of ONNX need onnxruntime: pip install onnx"):
        open_onnx(b"", [{}])


def test_a_model_that_draws_random_numbers_is_refused():
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": x + torch.rand_like(x)}

    given = {"x": torch.ones(3)}
    with pytest.raises(ValueError, match="random"):
        plain_module(Noisy(), given)
