"""Compiled models, compiled functions and programs on tiles are called in the same way."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import popgeo
from popgeo import ipu
from popgeo.ipu import IpuTarget, Options, TileExact

SMALL = replace(IpuTarget.bow(), name="small", num_tiles=4)


class Weighted(nn.Module):
    """A model that adds a weighted column to graph data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 2.0))

    def forward(self, data: Data) -> Data:
        return data.clone().update({"y": data.x * self.weight})


def make_data(name: str, rows: int = 3) -> Data:
    return Data(x=torch.arange(2.0 * rows).view(rows, 2), name=name)


def doors() -> dict[str, object]:
    model = ipu.inference_model(Weighted())
    model.compile(make_data("first"))
    function = ipu.compile(Weighted(), [make_data("first")])
    return {"model": model, "function": function, "tiles": TileExact(model, SMALL)}


@pytest.mark.parametrize("door", ["model", "function", "tiles"])
def test_what_comes_back_is_like_the_arguments_of_that_call(door):
    result = doors()[door](make_data("second"))
    assert result.name == "second"
    assert result.y.tolist() == [[0, 2], [4, 6], [8, 10]]


@pytest.mark.parametrize(
    ("door", "remedy"),
    [
        ("model", r"pass arguments of these shapes, or call reset\(\)"),
        ("function", "and compile again"),
        ("tiles", "and compile again"),
    ],
)
def test_other_arguments_are_refused_by_name_with_what_to_do(door, remedy):
    with pytest.raises(ValueError, match=rf"x` is float32\[4, 2\], but the model was compiled for .*3, 2.*{remedy}"):
        doors()[door](make_data("first", rows=4))


def test_only_calls_that_succeed_are_counted():
    function = ipu.compile(lambda x: x + 1, [torch.ones(2)])
    function(torch.zeros(2))
    with pytest.raises(ValueError, match="compiled for"):
        function(torch.zeros(3))
    assert function.report.calls == 1


def test_calls_are_counted_from_the_compile_on():
    step = ipu.inference_model(Weighted())
    for _ in range(3):
        step(make_data("first"))
    assert "3 calls" in repr(step)
    step.reset()
    step.compile(make_data("first"))
    assert (step.report.calls, step.report.run_seconds) == (0, 0.0)
    assert "0 calls" in repr(step)


@pytest.mark.parametrize("strict", [True, False])
def test_a_function_knows_whether_it_was_compiled_strictly(strict):
    assert ipu.compile(torch.relu, [torch.ones(2)], strict=strict).options.strict is strict


class Picks(nn.Linear):
    """A loss that cannot be compiled, or is too large."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = super().forward(x)
        return (rows if mask is None else rows[mask]).square().mean()


@pytest.mark.parametrize(
    ("inputs", "memory", "error"),
    [
        ([torch.ones(4, 8), torch.ones(4, dtype=torch.bool)], 2**20, ipu.DynamicShapeError),
        ([torch.ones(4, 8)], 2000, ipu.OutOfTileMemory),
    ],
)
def test_a_step_that_is_refused_leaves_model_and_optimizer_as_they_were(inputs, memory, error, tmp_path):
    model = Picks(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    places = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    options = Options(target=replace(SMALL, memory_per_tile=memory), cache_dir=tmp_path)
    step = ipu.training_model(model, options, optimizer)
    for _ in range(2):
        with pytest.raises(error):
            step(*inputs)
        assert not step.is_compiled
        assert not optimizer.state
        assert not list(tmp_path.iterdir())
        for p, (address, values) in zip(model.parameters(), places, strict=True):
            assert p.data_ptr() == address
            assert torch.equal(p, values)


def test_a_function_is_forgotten_and_compiled_anew_for_other_shapes():
    function = ipu.compile(lambda x: x + 1, [torch.ones(2)])
    function.reset()
    assert function(torch.zeros(3)).tolist() == [1, 1, 1]


def test_a_step_that_knows_no_machine_runs_on_tiles_too():
    step = popgeo.compile_forward(Weighted(), make_data("first"))
    assert TileExact(step, SMALL)(make_data("second")).y.tolist() == [[0, 2], [4, 6], [8, 10]]
