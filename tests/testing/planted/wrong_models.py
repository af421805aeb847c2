"""Models that are wrong on purpose, each in the smallest form of a known defect.

A planted model is a function below `planted`, with the claim that should find it, the origin of the defect, and the
settings of the trial if they are special.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, SAGEConv

from popgeo import ops
from tests.testing.planted.right_models import CUTOFF, Energy, Net, forces_of, lengths, pooled, safe


@dataclass(frozen=True, kw_only=True)
class Planted:
    claim: str
    source: str
    make: Callable[[], Any]
    how: dict[str, Any] = field(default_factory=dict)


WRONG: dict[str, Planted] = {}


def planted(claim: str, source: str, **how: Any) -> Callable:
    def note(make: Callable) -> Callable:
        WRONG[make.__name__] = Planted(claim=claim, source=source, make=make, how=how)
        return make

    return note


@planted("padding", "torch.nn.BatchNorm1d over padded batches, as in most of PyG's examples")
def batch_norm_over_padding():
    return Net(nodes=nn.BatchNorm1d(4))


@planted("padding", "global_mean_pool written as a sum over the number of slots")
def mean_over_slots():
    return Net(end=lambda out, batch: out - batch.x.nan_to_num().sum() / batch.num_nodes)


@planted("padding", "a loss without a mask: PyG's examples divide by the length of y")
def loss_over_all_graphs():
    return Net(end=lambda out, batch: (out, (out - batch.y).square().mean()))


@planted("padding", "a maximum that starts at the number of nodes of the batch")
def scaled_by_the_size_of_the_batch():
    return Net(end=lambda out, batch: out / batch.num_nodes**0.5)


@planted("padding", "statistics of a norm that are kept over all rows")
def running_mean_over_padding():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.seen.lerp_(x.detach().mean(0), 0.1)
            return x

    return Net(nodes=Remembers())


@planted("poisoned padding", "a readout that multiplies by the mask, as jraph's does: NaN times zero is NaN")
def masked_by_a_product():
    def total(batch: Any) -> Tensor:
        return (batch.x * batch.nodes_mask.unsqueeze(1)).sum(0, keepdim=True).expand(batch.num_graphs, -1) * 0 + pooled(
            batch.x, batch
        )

    return total


@planted("order of graphs", "a readout that adds an embedding of the slot")
def place_in_the_batch():
    return Net(end=lambda out, batch: out + torch.arange(batch.num_graphs).unsqueeze(1))


@planted("other graphs", "torch.softmax over all nodes of the batch in an attention readout")
def softmax_over_the_batch():
    def attend(x: Tensor, batch: Any) -> Tensor:
        logits = x[:, :1].masked_fill(~batch.nodes_mask.unsqueeze(1), -torch.inf)
        return x * logits.softmax(0)

    return Net(weigh=attend)


@planted("other graphs", "features divided by the largest of the batch")
def scaled_by_the_largest_of_the_batch():
    return Net(weigh=lambda x, batch: x / torch.where(batch.nodes_mask.unsqueeze(1), x, 0.0).abs().max())


@planted("order of nodes", "an embedding of the number of a node, which graphs do not have")
def numbered_nodes():
    def number(x: Tensor, batch: Any) -> Tensor:
        first = torch.searchsorted(batch.batch, torch.arange(batch.num_graphs))
        return x * (1 + torch.arange(len(x)) - first[batch.batch]).unsqueeze(1)

    return Net(weigh=number)


@planted("order of nodes", "a readout that takes the first node of each graph for all of it")
def first_node_of_each_graph():
    def first(batch: Any) -> Tensor:
        return batch.x[torch.searchsorted(batch.batch, torch.arange(batch.num_graphs)).clamp(max=batch.num_nodes - 1)]

    return first


@planted("order of edges", "PyG issue 9566: the features of edges came in the order of another list")
def features_of_edges_by_position():
    def forward(batch: Any) -> Tensor:
        ends, real = batch.edge_index[1], batch.edges_mask
        sent = safe(batch.edge_attr, real) * ops.gather(safe(batch.x, batch.nodes_mask), batch.edge_index[0])[:, :2]
        listed = torch.cat([ends[real].sort().values, ends[~real]])
        return ops.scatter(sent, listed, 0, dim_size=batch.num_nodes)

    return forward


@planted("order of edges", "SAGEConv(aggr='lstm') over the neighbors as they are listed")
def last_message_wins():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(3, 4, aggr="lstm")

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            order = edge_index[1].argsort(stable=True)
            return self.conv(x, edge_index[:, order])

    return Recurrent()


@planted("duplicate edges", "a neighbor list that holds a pair twice, as lists of images do", also=["duplicate edges"])
def pairs_counted_as_listed():
    return Net()


@planted("identical bits", "a sum over the batch that cancels, except for its rounding", also=["identical bits"])
def rounded_with_the_batch():
    def shifted(x: Tensor, batch: Any) -> Tensor:
        total = safe(x, batch.nodes_mask).sum()
        return (x + total) - total

    return Net(weigh=shifted)


@planted("layout of inputs", "nequip 0.19's changelog: wrong forces from inputs that are not contiguous")
def rows_read_as_if_contiguous():
    return lambda batch: pooled(
        batch.x.as_strided(batch.x.shape, (batch.x.size(1), 1), batch.x.storage_offset()), batch
    )


@planted("layout of inputs", "a kernel that reads from the start of the memory, not of the tensor")
def offset_forgotten():
    return lambda batch: pooled(batch.x.contiguous().as_strided(batch.x.shape, (batch.x.size(1), 1), 0), batch)


@planted("inputs stay", "an activation with inplace=True on features that belong to the dataset")
def relu_in_place():
    return lambda batch: pooled(F.relu(batch.x, inplace=True), batch)


@planted("inputs stay", "data.x = self.embedding(data.x), as in many examples: a second call sees what the first left")
def writes_into_the_batch():
    def forward(batch: Any) -> Tensor:
        batch.x = batch.x * 2
        return pooled(batch.x, batch)

    return forward


@planted("no memory", "GCNConv(cached=True) on more than one graph", call=lambda m, b: m(b.x, b.edge_index[:, :6]))
def cached_normalization():
    return GCNConv(3, 4, cached=True)


@planted("evaluation", "F.dropout without training=self.training, in published models more than once")
def dropout_in_evaluation():
    return Net(weigh=lambda x, batch: F.dropout(x, 0.5))


@planted("evaluation", "running statistics that are updated whatever the mode")
def statistics_in_evaluation():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1.0
            return x

    return Net(nodes=Counts())


@planted("float32", "a variance as the mean of squares less the square of the mean, as old layer norms have it")
def variance_by_squares():
    def variance(batch: Any) -> Tensor:
        x = batch.x + 1000.0
        return (x.square().mean(1) - x.mean(1).square()).unsqueeze(1)

    return variance


@planted("float32", "distances by squares of lengths, as torch.cdist takes them for many rows")
def distances_by_squares():
    def apart(batch: Any) -> Tensor:
        one, other = (batch.pos[end] + 1000.0 for end in batch.edge_index)
        return (one.square().sum(1) + other.square().sum(1) - 2 * (one * other).sum(1)).clamp(min=0).unsqueeze(1)

    return apart


@planted("lone nodes", "a mean over neighbors that divides by their number, which may be zero")
def mean_of_no_neighbors():
    def mean(x: Tensor, batch: Any) -> Tensor:
        ones = ops.scatter(torch.ones_like(batch.edge_index[1], dtype=x.dtype), batch.edge_index[1], 0, dim_size=len(x))
        return x / ones.unsqueeze(1)

    return Net(weigh=mean)


@planted("lone nodes", "a standard deviation as a readout: the root of zero has no gradient")
def deviation_of_one_node():
    def deviation(batch: Any, x: Tensor) -> Tensor:
        mean = ops.global_mean_pool(x, batch.batch, batch.num_graphs)
        apart = (x - mean[batch.batch]).square()
        return ops.global_mean_pool(apart, batch.batch, batch.num_graphs).sqrt()

    return Net(read=deviation)


@planted("gradients", "a layer whose result is detached, or made anew by torch.tensor")
def detached_layer():
    return Net(weigh=lambda x, batch: x.detach() + 0.1 * x)


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return torch.zeros_like(slope)


@planted("gradients", "cuEquivariance issue 77: compiled, a kernel lost its backward pass")
def kernel_without_backward():
    return Net(weigh=lambda x, batch: x + _NoBackward.apply(x))


@planted("second derivatives", "the length of padding edges is 0, and the root of 0 has no derivative")
def root_of_zero_at_padding():
    class Springs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(1, 1)

        def forward(self, batch: Any) -> Tensor:
            apart = batch.pos[batch.edge_index[0]] - batch.pos[batch.edge_index[1]]
            energies = self.lin(apart.square().sum(1, keepdim=True).sqrt()).square()
            atoms = ops.scatter(
                energies * batch.edges_mask.unsqueeze(1), batch.edge_index[1], 0, dim_size=len(batch.pos)
            )
            return pooled(atoms, batch)

    return Springs()


@planted("translation", "positions as features of atoms", also=["translation"])
def positions_as_features():
    return lambda batch: pooled(batch.pos * batch.x, batch)


@planted("rotation", "components of relative positions as features of edges", also=["rotation"])
def components_as_features():
    def forward(batch: Any) -> Tensor:
        apart = batch.pos[batch.edge_index[0]] - batch.pos[batch.edge_index[1]]
        return pooled(ops.scatter(apart.abs(), batch.edge_index[1], 0, dim_size=len(batch.pos)), batch)

    return forward


@planted("reflection", "a signed volume, which tells left from right, in an energy", also=["reflection"])
def handed_energy():
    def forward(batch: Any) -> Tensor:
        centre = ops.global_mean_pool(batch.pos, batch.batch, batch.num_graphs)
        far = batch.pos - centre[batch.batch]
        moments = [
            pooled(far * far.square().sum(1, keepdim=True) ** power * batch.x[:, :1], batch) for power in (0, 1, 2)
        ]
        return torch.linalg.det(torch.stack(moments, 1)).unsqueeze(1)

    return forward


@planted("extensive energy", "readout='mean' in a model of energies", also=["extensive energy"])
def energy_as_a_mean():
    return lambda batch: ops.global_mean_pool(batch.x, batch.batch, batch.num_graphs)


@planted("forces", "the sign of the gradient", call=lambda m, b: forces_of(m, b, sign=1.0))
def forces_uphill():
    return Energy()


@planted(
    "forces",
    "forces of standardized energies that are given back in other units",
    call=lambda m, b: forces_of(m, b, scale=27.2),
)
def forces_in_other_units():
    return Energy()


@planted("padding", "PyG's SchNet reads the number of graphs off the batch, and gives no row to the last slots")
def rows_for_used_graphs_only():
    return lambda batch: ops.global_add_pool(batch.x, batch.batch, int(batch.batch.max()) + 1)


@planted("forces", "a head of their own for forces, which belong to no energy")
def forces_by_a_head():
    class Direct(Energy):
        def forward(self, batch: Any) -> dict[str, Tensor]:
            forces = ops.scatter(lengths(batch)[1], batch.edge_index[1], 0, dim_size=len(batch.pos))
            return {"energy": super().forward(batch), "forces": forces}

    return Direct()


@planted("smooth cutoff", "a cutoff without an envelope", cutoff=CUTOFF)
def hard_cutoff():
    return Energy(envelope=lambda r: torch.ones_like(r))


@planted("smooth cutoff", "an envelope that is 0 at the cutoff with a slope that is not", cutoff=CUTOFF)
def envelope_with_a_corner():
    return Energy(envelope=lambda r: (1 - r / CUTOFF).clamp(min=0))


@planted("export", "the number of graphs read off the batch: int(batch.max()) + 1", also=["export"])
def forgotten_num_graphs():
    return lambda batch: ops.global_add_pool(batch.x, batch.batch, int(batch.batch.max()) + 1)


@planted("torch.compile", "a counter of calls in Python, which makes each batch a new program", also=["torch.compile"])
def counted_in_python():
    class Counts(Net):
        calls = 0

        def forward(self, batch: Any) -> Tensor:
            self.calls += 1
            return super().forward(batch) + (self.calls > 1) * 0.0 * self.calls

    return Counts()


@planted("compiled step", "real rows picked by a mask of booleans: as many as there are", also=["compiled step"])
def rows_picked_by_a_mask():
    return Net(end=lambda out, batch: out[batch.graphs_mask].sum())
