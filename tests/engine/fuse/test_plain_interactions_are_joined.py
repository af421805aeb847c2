"""Interactions written as gather, product and sum run in one pass, where that is what they are; else as before."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.nn.models import SchNet as PygSchNet
from torch_geometric.nn.models.schnet import ShiftedSoftplus as PygSoftplus

import popgeo
from popgeo import ipu
from popgeo.engine.fuse.plan_interactions import BACKWARD, CFCONV, CFCONV_BACKWARD, FORWARD
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
    made = [op.target for op in step.bound.runner.usual.runs.ops]
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


class Messages(nn.Module):
    """One sum of messages with filters of one layer, and the parts that variants of it change."""

    def __init__(self, form: str = "plain", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.first, self.network = nn.Linear(2, 2, dtype=dtype), nn.Linear(3, 2, dtype=dtype)

    def forward(self, x: Tensor, rows: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        x, w = self.first(x), self.network(rows)
        message = x[src] * (w[:, :1] if self.form == "one weight an edge" else w)
        base = torch.ones_like(x) if self.form == "on ones" else torch.zeros_like(x)
        wide = dst.view(-1, 1).expand_as(message)
        if self.form == "in place":
            out = base.scatter_add_(0, wide, message)
        elif self.form == "scattered":
            out = base.scatter_add(0, wide, message)
        elif self.form == "other zeros":
            out = message.new_zeros(len(x), 2).index_add_(0, dst, message)
        elif self.form == "read before":
            before = base + x
            out = base.scatter_add_(0, wide, message) + before
        elif self.form == "each its own row":
            out = base.scatter_add(0, torch.stack([dst, 1 - dst], dim=1), message)
        else:
            out = base.index_add(0, dst, message, alpha=2 if self.form == "twice" else 1)
        return out, out.square().sum() + (message.sum() if self.form == "shown" else 0)


def messages(dtype: torch.dtype = torch.float32) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x, rows = (torch.randn(n, k, generator=generator, dtype=dtype) for n, k in ((2, 2), (3, 3)))
    return {"x": x, "rows": rows, "src": torch.tensor([1, 0, 1]), "dst": torch.tensor([0, 1, 1])}


@needs_kernels
@pytest.mark.parametrize("form", ["plain", "in place", "scattered", "other zeros"])
def test_a_sum_of_gathered_products_is_an_interaction(form):
    step = assert_trains_as_eager(lambda: Messages(form), messages())
    assert count(step, FORWARD, BACKWARD, CFCONV) == [1, 1, 0]


@pytest.mark.parametrize("form", ["shown", "on ones", "twice", "one weight an edge", "each its own row", "read before"])
def test_what_is_none_or_is_read_elsewhere_runs_as_written(form):
    step = assert_trains_as_eager(lambda: Messages(form), messages())
    assert count(step, FORWARD, CFCONV) == [0, 0]


def test_another_type_runs_as_written():
    step = assert_trains_as_eager(lambda: Messages(dtype=torch.float64), messages(torch.float64))
    assert count(step, FORWARD, CFCONV) == [0, 0]


@needs_kernels
def test_filters_from_elsewhere_run_as_written():
    def convolve(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, x[src] * w)

    ends = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1])
    given = torch.tensor([[2.0], [3.0]]), torch.tensor([[10.0], [1.0], [1.0]]), *ends
    compiled = ipu.compile(convolve, list(given))
    assert compiled(*given).tolist() == [[30.0], [5.0]]
    assert FORWARD not in [op.target for op in compiled.bound.runner.usual.runs.ops]


class Network(nn.Module):
    """A convolution by filters from layers with these activations between them, an envelope first or last or not."""

    def __init__(self, *between: nn.Module, widths: int = 5, envelope: str = "last", bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.between, self.envelope = nn.ModuleList(between), envelope
        sizes = [3, *[widths] * len(between), 2]
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=bias) for i, o in itertools.pairwise(sizes))
        self.first = nn.Linear(2, 2)

    def forward(self, x: Tensor, rows: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        w, column = self.layers[0](rows), rows[:, :1].cos()
        for activation, layer in zip(self.between, self.layers[1:], strict=True):
            w = layer(activation(w))
        w = {"last": w * column, "first": column * w, "none": w}[self.envelope]
        x = self.first(x)
        out = torch.zeros_like(x).index_add(0, dst, x[src] * w)
        return out, out.square().sum()


@needs_kernels
@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: Network(kind()) for kind in (nn.Softplus, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid)),
        lambda: Network(PygSoftplus()),
        lambda: Network(nn.Tanh(), nn.Tanh(), nn.Tanh()),
        lambda: Network(nn.Tanh(), envelope="first"),
        lambda: Network(nn.Tanh(), envelope="none"),
        lambda: Network(nn.Tanh(), bias=False),
    ],
)
def test_networks_of_one_to_four_layers_are_joined(make):
    assert count(assert_trains_as_eager(make, messages()), FORWARD, BACKWARD) == [1, 1]


@needs_kernels
@pytest.mark.parametrize(
    "make",
    [
        lambda: Network(nn.GELU()),
        lambda: Network(nn.Softplus(beta=2)),
        lambda: Network(nn.Tanh(), nn.Sigmoid()),
        lambda: Network(*[nn.Tanh() for _ in range(4)]),
    ],
)
def test_other_networks_train_as_eager_whatever_is_joined(make):
    step = assert_trains_as_eager(make, messages())
    assert all(len(op.args[3]) <= 2 for op in step.bound.runner.usual.runs.ops if op.target == FORWARD)


@needs_kernels
def test_frozen_layers_get_no_gradient():
    def frozen() -> nn.Module:
        model = Network(nn.Tanh())
        model.layers[0].weight.requires_grad_(False)
        model.layers[1].bias.requires_grad_(False)
        return model

    assert count(assert_trains_as_eager(frozen, messages()), FORWARD, BACKWARD) == [1, 1]


@needs_kernels
@pytest.mark.parametrize(
    "make",
    [
        PlainSchNet,
        lambda: PlainSchNet(gathers=lambda x, index: x.index_select(0, index)),
        lambda: PlainSchNet(gathers=lambda x, index: x.gather(0, index.unsqueeze(1).expand(-1, x.shape[1]))),
        Pyg,
    ],
    ids=["index", "index_select", "gather", "pyg"],
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
def test_pairs_listed_once_train_as_eager_too():
    assert_trains_as_eager(lambda: PlainSchNet(half_list=True), make_batch())


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
