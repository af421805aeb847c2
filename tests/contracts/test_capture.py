"""No shape in a captured program depends on data; such code is refused, with its line and a remedy."""

import linecache
import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.utils import remove_self_loops, scatter, to_dense_batch

from popgeo import ipu
from popgeo.nn import SchNet
from popgeo.testing import check_static_capture
from tests.support.small_models import Stray


def graphs_of(x: Tensor) -> Tensor:
    """Compute the graph of each node from data."""
    return (x[:, 0] > 1).long()


class BooleanIndex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0].sum()  # HERE


class MaskedWrite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[x > 0] = x.flatten()  # HERE
        return y


class Nonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero().sum()  # HERE


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.max().item()  # HERE


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if (x > 0).any():  # HERE
            return x
        return -x


class Unique(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x)  # HERE


class SelfLoops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return remove_self_loops(x[:2].long())[0]  # HERE


class NoDimSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scatter(x, graphs_of(x))  # HERE


class Pooling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return pyg_nn.global_add_pool(x, graphs_of(x))  # HERE


class Dense(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return to_dense_batch(x, graphs_of(x))[0]  # HERE


DYNAMIC = {
    BooleanIndex: "torch.where",
    MaskedWrite: "torch.where",
    Nonzero: "torch.where",
    Item: "keep the value in a tensor",
    Branch: "torch.where",
    Unique: "before the batch is made",
    SelfLoops: "RemoveSelfLoops",
    NoDimSize: "dim_size=",
    Pooling: "size=",
    Dense: "max_num_nodes=",
}


def line_marked_here(kind: type) -> str:
    path = BooleanIndex.forward.__code__.co_filename
    start = kind.forward.__code__.co_firstlineno
    number = next(n for n in range(start, start + 9) if "# HERE" in linecache.getline(path, n))
    return f"{path}:{number} in forward"


@pytest.mark.parametrize("kind", DYNAMIC, ids=lambda kind: kind.__name__)
def test_what_depends_on_data_is_refused_with_line_and_remedy(kind):
    x = torch.ones(4, 3)
    with pytest.raises(ipu.DynamicShapeError, match=re.escape(line_marked_here(kind))) as caught:
        ipu.inference_model(kind())(x)
    assert DYNAMIC[kind] in str(caught.value)


@pytest.mark.parametrize("kind", DYNAMIC, ids=lambda kind: kind.__name__)
def test_the_static_check_finds_it_too(kind):
    problems = ipu.check_static(kind(), torch.ones(4, 3))
    assert problems
    assert line_marked_here(kind) in problems[0].source
    assert any(DYNAMIC[kind] in problem.remedy for problem in problems)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.inner = Nonzero()

    def forward(self, x: Tensor) -> Tensor:
        largest = self.norm(x).max().item()
        return self.inner(x) + x[x > largest].sum() + torch.rand(3).sum()


def test_the_static_check_lists_everything_and_changes_nothing():
    model = Several()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    problems = ipu.check_static(model, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert [(p.operation, p.module) for p in problems] == [
        ("_local_scalar_dense", ""), ("nonzero", "inner"), ("index", "")
    ]  # fmt: skip
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(dict(model.state_dict()), before)


class Decomposes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.cholesky(-x @ x.T).max().item() * x


def test_the_static_check_computes_nothing_from_features():
    with pytest.raises(torch.linalg.LinAlgError):
        Decomposes()(torch.ones(4, 3))
    (problem,) = ipu.check_static(Decomposes(), torch.ones(4, 3))
    assert problem.operation == "_local_scalar_dense"


def pool_and_compare(x: Tensor, batch: Tensor, y: Tensor) -> Tensor:
    num_graphs = int(batch.max()) + 1
    counts = torch.zeros(num_graphs).index_add_(0, batch, torch.ones(len(batch)))
    most = int(counts.max())
    sums = torch.zeros(num_graphs, 3).index_add(0, batch, x)
    third = torch.zeros(num_graphs, most, 3)[:, 2]
    return (sums.view(2, 3) - y + third)[y > 0].sum()


def test_the_static_check_reads_true_sizes_from_indices():
    found = ipu.check_static(pool_and_compare, torch.ones(5, 3), torch.tensor([0, 0, 0, 1, 1]), torch.ones(2, 3))
    lines = [problem.source.rpartition(": ")[2] for problem in found]
    assert lines == [
        "num_graphs = int(batch.max()) + 1", "most = int(counts.max())",
        "return (sums.view(2, 3) - y + third)[y > 0].sum()",
    ]  # fmt: skip


def size_of_what_is_written(x: Tensor) -> Tensor:
    sizes = torch.zeros(3)
    sizes[0:1].add_(x.sum())  # values unknown from this line on
    y = x + torch.ones(int(sizes.max()) + 4)  # 5, with 1 in place of an unknown number
    return y[y > 0]


def test_what_is_written_over_is_no_longer_known():
    assert len(ipu.check_static(size_of_what_is_written, torch.ones(5))) == 2


def test_what_fails_after_a_value_made_up_hides_nothing_found_before():
    def grows(x):
        return x + torch.ones(int(x.sum()))

    assert len(ipu.check_static(grows, torch.ones(5))) == 1
    with pytest.raises(RuntimeError):
        ipu.check_static(lambda x: x + torch.ones(4), torch.ones(5))


class SchNetLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = SchNet(hidden_channels=8, num_filters=8, num_interactions=2, num_gaussians=5, max_num_neighbors=3)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.net(z, pos, batch, num_graphs=2).squeeze(-1)
        return energy, (energy - y).abs().mean()


def make_molecules(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "z": torch.randint(1, 9, (10,), generator=generator),
        "pos": torch.randn(10, 3, generator=generator),
        "batch": torch.arange(10) // 5,
        "y": torch.randn(2, generator=generator),
    }


def test_a_static_model_has_no_problem_and_one_program_for_any_data():
    check_static_capture(SchNetLoss(), **make_molecules(0))


def test_a_function_is_checked_as_a_module_is():
    def positive(x):
        return x[x > 0].sum()

    (problem,) = ipu.check_static(positive, torch.ones(3))
    assert problem.operation == "index"
    assert "in positive: return x[x > 0].sum()" in problem.source
    assert ipu.check_static(torch.relu, torch.ones(3)) == []


def test_operations_know_phase_submodule_and_line():
    step = ipu.training_model(SchNetLoss()).compile(**make_molecules(0))
    assert {op.module for op in step.graph.ops if "cfconv" in op.target} >= {"net.interactions.1.conv"}
    graph = step.captured.expanded.graph  # the graph that the machine's costs are computed for
    matmuls = [op for op in graph.ops if op.target == "aten.mm.default"]
    assert {op.phase for op in graph.ops} == {"forward", "backward"}
    assert {op.module for op in matmuls} >= {"net.interactions.0.conv.lin1", "net.interactions.1.mlp.2"}
    assert all(re.search(r"\.py:\d+ in \w+: ", op.source) for op in matmuls)
    assert any(op.phase == "backward" and op.module == "net.interactions.0.mlp.0" for op in matmuls)


def test_state_outside_buffers_is_refused():
    with pytest.raises(ValueError, match=r"neither parameter, buffer nor result.*register_buffer"):
        ipu.inference_model(Stray())(torch.ones(1))
