"""Graphs per second of a whole training run, loader included: four arrangements on the same molecules, one thread.

- padded: the arrangement of the notebook published for IPUs, run eagerly: each molecule padded to the largest one,
  nearest neighbors out of all pairs of atoms of the batch, PyG's SchNet.
- dynamic: PyG's ordinary batches, the same neighbors found beforehand without padding edges, PyG's SchNet.
- popgeo: the main job: each pair of atoms within the cutoff listed beforehand and used in both directions; packed
  batches of fixed size; popgeo's SchNet, compiled.
- knn: the main job with --num-neighbors 16: as popgeo, but each step searches the neighbors within molecules.

The first two run twice: with torch's defaults, and with denormal numbers flushed (`torch.set_flush_denormal`), which on
many processors makes them several times faster. The goals are relative to the second, faster run.
"""

import argparse
from collections.abc import Callable

import torch
from timing import both_ways, measure, one_thread
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import SchNet as PygSchNet

from popgeo import ipu
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.nn import KNNInteractionGraph, PrecomputeInteractionGraph, SchNet, l1_loss

GAP = Molecules.target_index("gap")
CHANNELS, BLOCKS, GAUSSIANS = 64, 3, 32
GOALS = {"padded": 8, "dynamic": 4}  # times as fast, denormal numbers flushed
NEIGHBORS, CUTOFF, BATCH_SIZE, DEVICE_ITERATIONS = 16, 5.0, 32, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=1280, help="training molecules (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each arrangement (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="use few molecules; takes seconds")
    options = parser.parse_args()
    one_thread()
    torch.manual_seed(0)
    count, rounds = (96, 1) if options.quick else (options.molecules, options.rounds)
    dataset = Molecules()[:count]
    molecules = [Data(z=data.z, pos=data.pos, y=data.y[:, GAP]) for data in dataset]
    runs = {
        **both_ways({"padded": padded(molecules), "dynamic": dynamic(molecules)}),
        "popgeo": fixed_size(molecules, has_pairs=True),
        "knn": fixed_size(molecules, has_pairs=False),
    }
    seconds = measure(runs, rounds)
    for name, spent in seconds.items():
        print(f"{name}: {count / spent:,.0f} graphs/s")
    for ours in ("popgeo", "knn"):
        for peer, goal in GOALS.items():
            plain, fair = (seconds[name] / seconds[ours] for name in (peer, f"{peer}, flushed"))
            wanted = f" (goal: {goal})" if ours == "popgeo" else ""
            print(
                f"{ours} is {fair:.2f}x as fast as {peer}, flushed{wanted}, and {plain:.2f}x as fast as {peer} as run"
            )


class NearestOfAll(nn.Module):
    """The `k` nearest atoms of the same molecule, by all pairs of the batch; missing neighbors are at the cutoff."""

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        distance = nn.functional.pairwise_distance(pos.unsqueeze(0), pos.unsqueeze(1), eps=0.0)
        apart = (batch.unsqueeze(0) != batch.unsqueeze(1)) | torch.eye(len(pos), dtype=torch.bool)
        distance = distance.masked_fill(apart | (distance > CUTOFF), CUTOFF)
        count = min(NEIGHBORS, len(pos))
        weight, neighbor = torch.topk(-distance, count, dim=1)
        centre = torch.arange(len(pos)).repeat_interleave(count)
        return torch.stack([neighbor.flatten(), centre]), -weight.flatten()


class Given(nn.Module):
    """An interaction graph that returns edges found beforehand."""

    edge_index: Tensor

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = self.edge_index
        return self.edge_index, (pos[src] - pos[dst]).norm(dim=-1)


def make_pyg_schnet(interaction_graph: nn.Module) -> PygSchNet:
    """Return PyG's SchNet in the benchmark's size."""
    return PygSchNet(CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF, interaction_graph, readout="mean")


def train_eagerly(model: PygSchNet, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Run one training step."""
    optimizer.zero_grad()
    loss = (model(batch.z, batch.pos, batch.batch).flatten() - batch.y).abs().mean()
    loss.backward()
    optimizer.step()


def padded(molecules: list[Data]) -> Callable[[], None]:
    """Return an epoch of the padded arrangement. Its time does not include padding the molecules."""
    largest = max(data.num_nodes for data in molecules)
    same_size = [pad(data, largest) for data in molecules]
    model = make_pyg_schnet(NearestOfAll())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def epoch() -> None:
        for batch in DataLoader(same_size, BATCH_SIZE, shuffle=True):
            train_eagerly(model, optimizer, batch)

    return epoch


def pad(data: Data, num_nodes: int) -> Data:
    """Pad the molecule with atoms of number 0, far from its own atoms and from each other."""
    missing = num_nodes - len(data.z)
    far = 1e3 * torch.arange(1, missing + 1).unsqueeze(-1).expand(-1, 3)
    return Data(z=torch.cat([data.z, data.z.new_zeros(missing)]), pos=torch.cat([data.pos, far]), y=data.y)


def dynamic(molecules: list[Data]) -> Callable[[], None]:
    """Return an epoch of PyG's ordinary batches. Its time does not include finding the edges."""
    with_edges = []
    for data in molecules:
        edge_index, distance = NearestOfAll()(data.pos, torch.zeros(len(data.z), dtype=torch.long))
        with_edges.append(Data(z=data.z, pos=data.pos, y=data.y, edge_index=edge_index[:, distance < CUTOFF]))
    graph = Given()
    model = make_pyg_schnet(graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def epoch() -> None:
        for batch in DataLoader(with_edges, BATCH_SIZE, shuffle=True):
            graph.edge_index = batch.edge_index
            train_eagerly(model, optimizer, batch)

    return epoch


class GapModel(nn.Module):
    """SchNet and its loss over the real molecules. Without `pairs`, the step searches the edges."""

    def __init__(self, num_graphs: int, max_num_nodes: int) -> None:
        super().__init__()
        self.num_graphs = num_graphs
        graph = KNNInteractionGraph(NEIGHBORS, CUTOFF, max_num_nodes)
        self.schnet = SchNet(CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF, graph, readout="mean")

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor, *pairs: Tensor) -> Tensor:
        """Return the mean absolute error of a batch."""
        edge_index = pairs[0] if pairs else None
        gap = self.schnet(z, pos, batch, edge_index, num_graphs=self.num_graphs, half_list=bool(pairs))
        return l1_loss(gap.flatten(), y, graphs_mask)


def fixed_size(molecules: list[Data], has_pairs: bool) -> Callable[[], None]:
    """Return an epoch of the main job's arrangement. Its time does not include listing the pairs."""
    list_pairs = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    store = FlatStore.from_dataset([list_pairs(data) for data in molecules] if has_pairs else molecules)
    sizes = FixedSizeOptions.tune(store, target_graphs=BATCH_SIZE, verbose=False)
    options = ipu.Options(device_iterations=DEVICE_ITERATIONS, output_mode="all")
    loader = FixedSizeDataLoader(
        store,
        shuffle=True,
        fixed_size_options=sizes,
        fixed_size_strategy=FixedSizeStrategy.Window,
        options=options,
    )
    model = GapModel(sizes.num_graphs, max_num_nodes=int(store.sizes[:, 0].max()))
    training = ipu.training_model(model, options, torch.optim.Adam(model.parameters(), lr=1e-3))

    def epoch() -> None:
        for batch in loader:
            pairs = (batch.edge_index,) if has_pairs else ()
            training(batch.z, batch.pos, batch.batch, batch.y, batch.graphs_mask, *pairs)

    return epoch


if __name__ == "__main__":
    run(main)
