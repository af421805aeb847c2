"""Interactions written as gather, product and sum run in one pass, where that is what they are; else as before."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.nn.models import SchNet as PygSchNet

import popgeo
from popgeo import ipu
from popgeo.engine.fuse.interaction import BACKWARD, FORWARD
from popgeo.engine.fuse.plain_convolution import CFCONV, CFCONV_BACKWARD, name_convolutions
from popgeo.engine.graph_runner import GraphRunner
from popgeo.ops import interaction_call

needs_kernels = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")

CUTOFF, NUM_NODES = 5.0, 8
Batch = dict[str, Tensor]


class PlainSchNet(nn.Module):
    """SchNet in torch's operations, on pairs listed both ways or once."""

    def __init__(self, half_list: bool = False, gathers: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.readout, self.half_list = nn.Embedding(10, 12), nn.Linear(12, 1), half_list
        self.filters = nn.ModuleList(nn.Sequential(nn.Linear(6, 9), nn.Softplus(), nn.Linear(9, 12)) for _ in range(2))
        self.inputs = nn.ModuleList(nn.Linear(12, 12, bias=False) for _ in range(2))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 12), nn.Softplus(), nn.Linear(12, 12)) for _ in range(2)
        )
        self.register_buffer("centres", torch.linspace(0, CUTOFF, 6))
        self.gathers = gathers or (lambda x, index: x[index])

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        r = (pos[src] - pos[dst]).square().sum(-1).add(1e-9).sqrt()
        rbf = torch.exp(-10.0 * (r.unsqueeze(-1) - self.centres).square())
        envelope = 0.5 * (torch.cos(r * torch.pi / CUTOFF) + 1.0) * (r < CUTOFF)
        x = self.embedding(z)
        for filters, inputs, update in zip(self.filters, self.inputs, self.updates, strict=True):
            w, h = filters(rbf) * envelope.unsqueeze(-1), inputs(x)
            sums = self.sum(h, w, src, dst)
            x = x + update(sums + self.sum(h, w, dst, src) if self.half_list else sums)
        out = self.readout(x).squeeze(-1)
        return out, (out - y).square().mean()

    def sum(self, x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """Of the messages at their receivers."""
        return torch.zeros_like(x).index_add(0, dst, self.gathers(x, src) * w)


class Pyg(nn.Module):
    """PyG's SchNet and its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = PygSchNet(12, 9, 2, 6, CUTOFF, interaction_graph=Edges())
        self.model.readout = SumOfAll()  # PyG's reads a size from the data

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model(z, pos, edge_index)
        return out, (out / len(z) - y.mean()).square().mean()


class Edges(nn.Module):
    """Edges that are given, as PyG passes them through: in the place of the batch."""

    def forward(self, pos: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return edge_index, (pos[edge_index[0]] - pos[edge_index[1]]).square().sum(-1).sqrt()


class SumOfAll(nn.Module):
    """One molecule."""

    def forward(self, x: Tensor, batch: Tensor, dim: int) -> Tensor:
        return x.sum(dim, keepdim=True)


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(NUM_NODES, (30,), generator=generator)
    return {
        "z": torch.randint(1, 10, (NUM_NODES,), generator=generator),
        "pos": 2 * torch.randn(NUM_NODES, 3, generator=generator),
        "edge_index": torch.stack([src, (src + 1 + torch.arange(30) % (NUM_NODES - 1)) % NUM_NODES]),
        "y": torch.randn(NUM_NODES, generator=generator),
    }


def train(model: nn.Module, **options: bool) -> ipu.CompiledStep:
    return popgeo.training_model(model, ipu.Options(**options), optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


def count(step: ipu.CompiledStep, *targets: str) -> list[int]:
    made = [op.target for op in step._bound.runner.usual.runner.runs.ops]
    return [made.count(target) for target in targets]


def assert_trains_as_eager(make: Callable[[], nn.Module], batch: Batch, **options: bool) -> ipu.CompiledStep:
    compiled, eager = make(), make()
    step, optimizer = train(compiled, **options), torch.optim.SGD(eager.parameters(), lr=0.01)
    for _ in range(3):
        out, _ = step(**batch)
        optimizer.zero_grad()
        expected, loss = eager(**batch)
        loss.backward()
        optimizer.step()
        assert_close(out, expected.detach(), rtol=1e-5, atol=1e-5)
    for one, two in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(one, two, rtol=1e-5, atol=1e-6)
    return step


class Convolution(nn.Module):
    """A sum of messages and the parts that variants of it change."""

    def __init__(self, form: str = "plain", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.form, self.dtype = form, dtype

    def forward(self, x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
        x, w = (x * 1).to(self.dtype), w.to(self.dtype)
        message = x[src] * (w[:, :1] if self.form == "one weight an edge" else w)
        base = torch.ones_like(x) if self.form == "on ones" else torch.zeros_like(x)
        if self.form == "in place":
            out = base.scatter_add_(0, dst.view(-1, 1).expand_as(message), message)
        elif self.form == "read before":
            before = base + x
            return base.scatter_add_(0, dst.view(-1, 1).expand_as(message), message), before
        elif self.form == "each its own row":
            rows = torch.stack([dst, 1 - dst], dim=1)
            out = base.scatter_add(0, rows, message)
        else:
            out = base.index_add(0, dst, message, alpha=2 if self.form == "twice" else 1)
        return (out, message * 2) if self.form == "shown" else (out,)


def hand_sized() -> list[Tensor]:
    """Two nodes, one channel: 3 * 10 arrives at the first, 2 * 1 and 3 * 1 at the second."""
    x, w = torch.tensor([[2.0], [3.0]]), torch.tensor([[10.0], [1.0], [1.0]])
    return [x, w, torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1])]


def two_channels() -> list[Tensor]:
    x, w, src, dst = hand_sized()
    return [torch.cat([x, 10 * x], dim=1), w.expand(3, 2).clone(), src, dst]


@pytest.mark.parametrize("form", ["plain", "in place"])
def test_a_sum_of_gathered_products_is_a_convolution(form):
    step = popgeo.inference_model(Convolution(form)).compile(*two_channels())
    named = name_convolutions(step.graph)
    targets = [op.target for op in named.ops]
    assert targets.count(CFCONV) == 1
    assert not any(target.startswith(("aten.index_", "aten.scatter", "aten.zeros")) for target in targets)
    (out,) = GraphRunner(named, {}).run(two_channels())
    assert out.tolist() == [[30.0, 300.0], [5.0, 50.0]]


@pytest.mark.parametrize("form", ["shown", "on ones", "twice", "one weight an edge", "each its own row", "read before"])
def test_what_is_no_convolution_or_is_read_elsewhere_is_left(form):
    step = popgeo.inference_model(Convolution(form))
    expected = Convolution(form)(*two_channels())
    assert_close(step(*two_channels()), expected)
    assert name_convolutions(step.graph) is step.graph


def test_another_type_is_left():
    step = popgeo.inference_model(Convolution(dtype=torch.float64))
    (out,) = step(*two_channels())
    assert out.dtype == torch.float64
    assert name_convolutions(step.graph) is step.graph


def test_a_convolution_without_a_filter_network_runs_as_written():
    step = popgeo.inference_model(Convolution())
    (out,) = step(*two_channels())
    assert out.tolist() == [[30.0, 300.0], [5.0, 50.0]]
    assert count(step, CFCONV, FORWARD) == [0, 0]


class Trained(nn.Module):
    """A convolution of what is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.w = (nn.Parameter(tensor) for tensor in two_channels()[:2])

    def forward(self, src: Tensor, dst: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = Convolution()(self.x, self.w * 1, src, dst)
        return out, (out * y).sum()


def test_gradients_are_found_and_are_those_worked_out_by_hand():
    # The gradient of the sums is y: 1 at the first node, 2 at the second. An edge's filter gets that of its receiver
    # times what its sender has; a node gets from each edge that leaves it the receiver's times the filter.
    src, dst = two_channels()[2:]
    batch = src, dst, torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    model = Trained()
    step = popgeo.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)).compile(*batch)
    named = name_convolutions(step.graph)
    assert [sum(op.target == target for op in named.ops) for target in (CFCONV, CFCONV_BACKWARD)] == [1, 1]
    state = {given: dict(model.named_parameters())[given.name] for given in named.inputs if given.name in ("x", "w")}
    made = GraphRunner(named, state).run(batch)
    gradients = {tuple(tensor.shape): tensor.tolist() for tensor in made[2:] if tensor is not None}
    assert gradients[3, 2] == [[3.0, 30.0], [4.0, 40.0], [6.0, 60.0]]
    assert gradients[2, 2] == [[2.0, 2.0], [12.0, 12.0]]


@needs_kernels
@pytest.mark.parametrize(
    "make",
    [
        PlainSchNet,
        lambda: PlainSchNet(half_list=True),
        lambda: PlainSchNet(gathers=lambda x, index: x.index_select(0, index)),
        lambda: PlainSchNet(gathers=lambda x, index: x.gather(0, index.unsqueeze(1).expand(-1, x.shape[1]))),
        Pyg,
    ],
    ids=["index", "half list", "index_select", "gather", "pyg"],
)
def test_a_plain_model_has_its_interactions_joined_and_trains_as_eager(make):
    step = assert_trains_as_eager(make, make_batch())
    assert count(step, FORWARD, BACKWARD, CFCONV, CFCONV_BACKWARD) == [2, 2, 0, 0]
    assert "2 of 2 interactions in one pass" in repr(step)
    assert not {op.target for op in step.graph.ops} & {FORWARD, CFCONV}  # the captured graph stays


class Variant(PlainSchNet):
    """The same with its sums, filters or loss changed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        if name == "filters shared":
            self.filters = nn.ModuleList([self.filters[0]] * 2)

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.name != "forces":
            return super().forward(z, pos, edge_index, y)
        with torch.enable_grad():
            pos = pos.clone().requires_grad_(True)
            out, loss = super().forward(z, pos, edge_index, y)
            (forces,) = torch.autograd.grad(out.sum(), pos, create_graph=True)
        return out, loss + forces.square().mean()

    def sum(self, x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        if self.name == "messages used":
            messages = x[src] * w
            return torch.zeros_like(x).index_add(0, dst, messages) + messages.mean(0)
        if self.name == "summed twice":
            return super().sum(super().sum(x, w, src, dst), w, dst, src)
        if self.name == "two sums into one":
            out = torch.zeros_like(x)
            seen = out.view(-1)
            out.index_add_(0, dst, x[src] * w).index_add_(0, src, x[dst] * w)
            return out + seen.view_as(out)
        if self.name == "more rows":
            return torch.zeros(len(x) + 3, x.shape[1]).index_add(0, dst, w * x[src])[: len(x)]
        sums = super().sum(x, w, src, dst)
        return sums + w.mean() if self.name == "filters used" else sums


@needs_kernels
@pytest.mark.parametrize(
    ("name", "joined"),
    [
        ("more rows", 2),
        ("messages used", 0),
        ("filters used", 0),
        ("filters shared", 0),
        ("summed twice", 0),
        ("two sums into one", 0),
        ("forces", 0),
    ],
)
def test_interactions_are_joined_only_where_nothing_else_needs_their_parts(name, joined):
    step = assert_trains_as_eager(lambda: Variant(name), make_batch())
    assert count(step, FORWARD, CFCONV, CFCONV_BACKWARD) == [joined, 0, 0]


@needs_kernels
@pytest.mark.parametrize("num_edges", [0, 1])
def test_no_edges_or_one_are_joined_too(num_edges):
    batch = make_batch()
    step = assert_trains_as_eager(PlainSchNet, batch | {"edge_index": batch["edge_index"][:, :num_edges]})
    assert count(step, FORWARD, BACKWARD) == [2, 2]


@needs_kernels
def test_a_plain_model_gives_the_same_bits_for_any_number_of_threads():
    results = []
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        step = train(PlainSchNet())
        results.append([step(**make_batch())[1] for _ in range(2)])
    assert results[0] == results[1] == results[2]


def test_checked_arithmetic_runs_every_operation_by_itself():
    step = assert_trains_as_eager(PlainSchNet, make_batch(), floating_point_exceptions=True)
    assert count(step, FORWARD, CFCONV) == [0, 0]


@pytest.mark.parametrize(
    ("make", "end", "row"),
    [(PlainSchNet, 0, NUM_NODES), (PlainSchNet, 1, NUM_NODES), (Pyg, 0, NUM_NODES), (Pyg, 1, -1)],
)
def test_an_index_out_of_range_is_refused(make, end, row):
    step, batch = popgeo.inference_model(make()), make_batch()
    step(**batch)
    edges = batch["edge_index"].clone()
    edges[end, 3] = row
    with pytest.raises((ValueError, IndexError, RuntimeError), match=r"out of range|out of bounds|allowed are 0 to 7"):
        step(**batch | {"edge_index": edges})


def test_negative_senders_count_from_the_end():
    step, batch = popgeo.inference_model(PlainSchNet()), make_batch()
    expected, _ = step(**batch)
    edges = batch["edge_index"].clone()
    edges[0] -= NUM_NODES
    assert_close(step(**batch | {"edge_index": edges})[0], expected, rtol=1e-5, atol=1e-5)
    assert_close(PlainSchNet()(**batch | {"edge_index": edges})[0].detach(), expected, rtol=1e-5, atol=1e-5)
