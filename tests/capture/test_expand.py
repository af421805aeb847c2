"""Operations that stand for several are taken apart into what a model in plain operations would be captured as."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo.capture.check_graph import check_graph
from popgeo.capture.expand import expand, trace
from popgeo.capture.op_graph import OpGraph, Value
from popgeo.engine.graph_runner import GraphRunner
from popgeo.ipu import TileExact, training_model
from tests.support.training_steps import schnet

WHOLE = {"popgeo.interaction.default", "popgeo.interaction_backward.default"}


def compiled(model: nn.Module, inputs: list[object]):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return training_model(model, optimizer=optimizer).compile(*inputs)


def plain_and_whole(monkeypatch: pytest.MonkeyPatch):
    """The same step captured with its interactions whole, and as modules write them."""
    steps = []
    for is_plain in (True, False):
        with monkeypatch.context() as patch:
            if is_plain:
                patch.setattr("popgeo.nn.models.schnet.networks_in_one_pass", lambda *_: None)
            torch.manual_seed(0)
            steps.append(compiled(*schnet(num_nodes=12, num_graphs=2, k=3, channels=6, gaussians=4)))
    return steps


def targets(graph: OpGraph) -> list[str]:
    return sorted(op.target for op in graph.ops)


def test_expanded_it_is_the_graph_that_plain_modules_are_captured_as(monkeypatch):
    plain, whole = plain_and_whole(monkeypatch)
    assert {op.target for op in whole.graph.ops} >= WHOLE
    expanded = expand(whole.graph)
    check_graph(expanded)
    # One view more, of the envelope as a column: the plain model makes it once, and this one in the first block.
    assert targets(expanded) == targets(plain.graph)
    assert expand(plain.graph) is plain.graph


def test_modules_have_the_cycles_that_they_have_in_plain_operations(monkeypatch):
    plain, whole = plain_and_whole(monkeypatch)
    assert whole.report.total_cycles == plain.report.total_cycles
    assert str(whole.report.memory) == str(plain.report.memory)
    found = []
    for step in (plain, whole):
        rows = step.report.to_frame("modules").set_index("module")["cycles"]
        found.append(
            {name: rows[name] for name in rows.index if name.endswith(("mlp", "mlp.2", ".lin1", "interactions.0"))}
        )
    assert found[0].keys() == found[1].keys()
    for name, cycles in found[0].items():
        assert found[1][name] == pytest.approx(cycles)


def test_a_block_and_a_phase_stay_with_all_that_an_operation_stands_for(monkeypatch):
    _, whole = plain_and_whole(monkeypatch)
    for op in expand(whole.graph).ops:
        if op.target.startswith("popgeo.cfconv"):
            assert op.module.endswith(".conv")
            assert op.phase == ("backward" if "backward" in op.target else "forward")
            assert op.source


def test_tiles_run_what_it_stands_for():
    torch.manual_seed(0)
    step = compiled(*schnet(num_nodes=8, num_graphs=2, k=2, channels=4, gaussians=3))
    _, inputs = schnet(num_nodes=8, num_graphs=2, k=2, channels=4, gaussians=3)
    exact = TileExact(step)
    assert_close(exact(*inputs), step(*inputs), rtol=1e-5, atol=1e-5)
    assert exact.program.fallbacks == ()


def test_a_function_is_traced_with_its_gradients():
    value = Value(shape=(3,), stride=(1,), offset=0, dtype=torch.float32, storage=0, producer=None)

    def slope(x: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return list(torch.autograd.grad(leaf.sin(), leaf, torch.ones(3)))

    graph = trace(slope, [value])
    (made,) = GraphRunner(graph, {}).run([torch.zeros(3)])
    assert made.tolist() == [1.0, 1.0, 1.0]
