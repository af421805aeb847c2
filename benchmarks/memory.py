"""Peak memory of a training step beyond weights and inputs: compiled step against eager PyG on the same edges.

    python benchmarks/memory.py

SchNet on packed QM9 molecules. Eager memory is the peak size of the tensors made during forward, loss and backward.
Compiled memory is the step's one allocation plus the peak size of the allocations by its operations. Both include the
gradients of the weights.
"""

import argparse
from collections.abc import Callable

import torch
import torch_geometric.nn as pyg
from models import CUTOFF, MAX_NUM_NODES, K, KnownEdges, packed_batch
from timing import one_thread
from torch import Tensor, nn

from popgeo import ipu
from popgeo.command_line import run
from popgeo.engine.eager_memory import Allocations
from popgeo.engine.graph_runner import GraphRunner
from popgeo.nn import KNNInteractionGraph, SchNet, mse_loss

GOAL = 1 / 3


def eager_peak(model: nn.Module, step: Callable[[], Tensor]) -> int:
    """Return the peak bytes of the second of two steps."""
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with Allocations() as made:
            step().backward()
    return made.peak().nbytes


class Step(nn.Module):
    """Prediction and loss, in the form that `training_model` expects."""

    def __init__(self, model: nn.Module, num_graphs: int) -> None:
        super().__init__()
        self.model, self.num_graphs = model, num_graphs

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edges: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.model(z, pos, batch, edges, num_graphs=self.num_graphs, half_list=True)
        return energy, mse_loss(energy, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=576)
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="use a small batch")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.channels, options.blocks = 96, 16, 2
    one_thread()
    torch.manual_seed(0)
    batch = packed_batch(options.nodes)
    shape, target = (options.channels, options.channels, options.blocks, 50, CUTOFF), torch.zeros(batch.num_graphs, 1)
    graph = KNNInteractionGraph(K, CUTOFF, max_num_nodes=MAX_NUM_NODES)
    edges, length = graph(batch.pos, batch.batch, num_graphs=batch.num_graphs, nodes_mask=batch.z > 0)
    real = length < CUTOFF
    peer = pyg.SchNet(*shape, interaction_graph=KnownEdges(edges[:, real], length[real]))
    model = SchNet(*shape, interaction_graph=graph)
    model.load_state_dict(peer.state_dict())
    theirs = eager_peak(peer, lambda: mse_loss(peer(batch.z, batch.pos, batch.batch), target))
    arguments = (batch.z, batch.pos, batch.batch, batch.edge_index, target)
    compiled = ipu.training_model(Step(model, batch.num_graphs), optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    _, loss = compiled(*arguments)
    expected = mse_loss(peer(batch.z, batch.pos, batch.batch), target).detach()
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)
    runner = compiled.bound.on_processor.usual
    assert isinstance(runner, GraphRunner)  # the default backend, not inductor
    gradients = sum(p.nbytes for p in model.parameters())
    ours = runner.peak_bytes + gradients
    print(
        f"{options.nodes} atoms, {int(real.sum()):,} real edges, F = {options.channels}, {options.blocks} blocks: PyG "
        f"{theirs / 1e6:.1f} MB, popgeo {ours / 1e6:.1f} MB, {ours / theirs:.2f} of it (goal {GOAL:.2f}); of "
        f"these {(ours - runner.buffer_bytes - gradients) / 1e6:.1f} MB are allocated again in each step"
    )


if __name__ == "__main__":
    run(main)
