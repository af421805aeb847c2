"""Where a compiled graph differentiates interactions by distances, their filters' slopes are kept beside them."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import popgeo
from popgeo import ipu
from popgeo.engine.fuse.plan_interactions import BACKWARD, FORWARD, PLAN, SECOND
from popgeo.nn import SchNet, energy_and_forces
from popgeo.ops import interaction_call
from popgeo.ops.filter_network import Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction import interaction

pytestmark = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")

NUM_NODES = 30


class ByEdge(nn.Module):
    """An interaction, its gradients by each edge's own distance and envelope, and a loss of all that."""

    def __init__(self, sizes: tuple[int, ...], activation: Activation, half_list: bool, by: tuple[bool, bool]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: nn.Parameter(torch.randn(*shape, generator=generator) / shape[-1] ** 0.5)  # noqa: E731
        self.weights = nn.ParameterList(draw(out, size) for size, out in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(draw(out) for out in sizes[1:])
        self.x = draw(NUM_NODES, sizes[-1])
        self.register_buffer("centres", torch.linspace(0, 6, sizes[0]))
        self.activation, self.half_list, self.by = activation, half_list, by

    def forward(self, edges: Tensor, r: Tensor, envelope: Tensor, toward: Tensor) -> tuple[Tensor, ...]:
        r, envelope = (t.detach().requires_grad_() for t in (r, envelope))
        network = FilterNetwork(weights=list(self.weights), biases=list(self.biases), activation=self.activation)
        gaussians = Gaussians(centres=self.centres, width=-2.0)
        out = interaction(self.x, *edges, NUM_NODES, network, r, gaussians, envelope, half_list=self.half_list)
        wanted = [t for t, is_wanted in zip((r, envelope), self.by, strict=True) if is_wanted]
        slopes = torch.autograd.grad((out * out.tanh()).sum(), wanted, create_graph=True)
        loss = out.square().mean() + sum((slope * toward).sum() for slope in slopes)
        return out, *slopes, loss


def both_ways(edges: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Each edge and, far from it in the list, the one that runs the other way over the same distance."""
    return torch.cat([edges, edges.flip(0).roll(7, 1)], 1), torch.cat([r, r.roll(7)])


def edges_of(kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    pairs = torch.combinations(torch.arange(NUM_NODES))
    pairs = pairs[torch.randperm(len(pairs), generator=generator)[:150]].T.contiguous()
    r = 6 * torch.rand(pairs.shape[1], generator=generator)
    if kind == "pairs":
        return pairs, r
    edges, r = both_ways(pairs, r)
    if kind == "nearly twins":
        r[3] = r[3].nextafter(torch.tensor(9.0))
    if kind == "images":  # two edges between the same atoms, over the same distance, and both ways
        edges, r = torch.cat([edges, edges[:, :1], edges[:, :1].flip(0)], 1), torch.cat([r, r[:1], r[:1]])
    loops = {"itself": [4], "padding": [4, 4, 4, 4], "loops of two": [4, 4, 5, 4]}.get(kind, [])
    return torch.cat([edges, torch.tensor([loops, loops]).long()], 1), torch.cat([r, r[:1].expand(len(loops))])


def gradients(model: nn.Module, given: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and the parameters' gradients in float64, as torch has them."""
    wide = type(model)(*model.made_from).double()
    wide.load_state_dict(model.state_dict())
    *outputs, loss = wide(*(t.double() if t.is_floating_point() else t for t in given))
    loss.backward()
    return [t.detach() for t in (*outputs, loss)], [p.grad for p in wide.parameters()]


def compiled(model: nn.Module, given: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor], ipu.CompiledStep]:
    before = [p.detach().clone() for p in model.parameters()]
    step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), lr=1.0))
    outputs = [t.clone() for t in step(*given)]
    return outputs, [a - p.detach() for a, p in zip(before, model.parameters(), strict=True)], step


def case(kind: str = "twins", sizes=(9, 12, 20), activation=Activation.SHIFTED_SOFTPLUS, by=(True, True)):
    """A model and what it is given: no two edges are wanted to have the same gradient."""
    made_from = sizes, activation, kind == "pairs", by
    model = ByEdge(*made_from)
    model.made_from = made_from
    edges, r = edges_of(kind)
    generator = torch.Generator().manual_seed(2)
    envelope, toward = (torch.randn(len(r), generator=generator) for _ in range(2))
    envelope[5] = 0.0
    return model, (edges, r, envelope, toward)


def assert_as_defined(model: nn.Module, given: tuple[Tensor, ...]) -> ipu.CompiledStep:
    expected, expected_gradients = gradients(model, given)
    outputs, found, step = compiled(model, given)
    for one, other in zip((*outputs, *found), (*expected, *expected_gradients), strict=True):
        assert_close(one.double(), other, rtol=1e-4, atol=2e-5 * max(1.0, float(other.abs().max())))
    return step


def kept(step: ipu.CompiledStep) -> tuple[bool, bool]:
    """Whether slopes are kept, and whether twins share them where there are some."""
    graph = step.bound.runner.usual.runs
    (forward,) = (op for op in graph.ops if op.target == FORWARD)
    (plan,) = (op for op in graph.ops if op.target == PLAN)
    channels = graph.values[forward.args[0].value].shape[1]
    doubled = graph.values[forward.makes()[1]].shape[1] == 2 * interaction_call.filters_shape(1, channels)[1]
    return doubled, len(plan.args) == 7 and plan.args[6]


@pytest.mark.parametrize("kind", ["twins", "pairs", "nearly twins", "images", "itself", "padding", "loops of two"])
def test_each_edge_has_its_own_gradient_though_it_shares_a_filter_with_its_twin(kind):
    assert kept(assert_as_defined(*case(kind))) == (True, kind != "pairs")


@pytest.mark.parametrize(
    ("kind", "shares"),
    [("twins", True), ("padding", True), ("nearly twins", False), ("images", False), ("itself", False)],
)
def test_filters_are_made_for_half_of_the_edges_where_each_has_a_twin_and_loops_come_in_twos(kind, shares):
    (src, dst), r = edges_of(kind)
    plan = torch.ops.popgeo.interaction_plan(src, dst, None, r, NUM_NODES, NUM_NODES, True)
    assert plan[0] == (len(r) // 2 if shares else len(r))


@pytest.mark.parametrize("by", [(True, False), (False, True)])
def test_either_gradient_may_be_wanted_alone(by):
    assert kept(assert_as_defined(*case(by=by)))[0]


@pytest.mark.parametrize(
    ("sizes", "activation"),
    [
        ((9, 20), Activation.SHIFTED_SOFTPLUS),
        ((5, 33, 70), Activation.SILU),
        ((9, 7, 12, 3), Activation.TANH),
        ((30, 8, 8, 8, 16), Activation.SIGMOID),
        ((9, 12, 1), Activation.SOFTPLUS),
        ((9, 12, 80), Activation.RELU),
    ],
)
def test_networks_of_several_shapes_are_served(sizes, activation):
    assert kept(assert_as_defined(*case("twins", sizes, activation)))[0]


def test_any_number_of_threads_gives_the_same_bits():
    found = []
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        outputs, made, _ = compiled(*case("twins", (9, 12, 20)))
        found.append([*outputs, *made])
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


class Positions(nn.Module):
    """SchNet trained on forces, or with a force of the forces, which needs each distance twice."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.twice = SchNet(8, 8, 2, 6, 5.0), twice

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pos = pos.detach().requires_grad_()
        _, forces = energy_and_forces(self.model, z, pos, batch, edges, num_graphs=1)
        loss = forces.square().sum()
        found = torch.autograd.grad(loss, pos, create_graph=True)[0] if self.twice else forces
        return forces, found, loss + 0.01 * found.sum()


def test_where_distances_are_differentiated_by_twice_all_is_made_as_before():
    edges, _ = edges_of("twins")
    generator = torch.Generator().manual_seed(0)
    given = (
        torch.full((NUM_NODES,), 6),
        5 * torch.rand(NUM_NODES, 3, generator=generator),
        torch.zeros(NUM_NODES).long(),
    )
    for twice in (False, True):
        step = popgeo.compile_forward(Positions(twice).train())
        expected = Positions(twice).train()(*given, edges)
        for one, other in zip(step(*given, edges), expected, strict=True):
            assert_close(one, other.detach(), rtol=1e-3, atol=1e-4)


def test_a_training_step_of_forces_has_each_interaction_in_each_direction_once():
    model, given = case()
    *_, step = compiled(model, given)
    targets = [op.target for op in step.bound.runner.usual.runs.ops]
    assert [targets.count(target) for target in (FORWARD, SECOND)] == [1, 1]
    assert targets.count(BACKWARD) == 2
