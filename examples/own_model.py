"""Write your own model, find its dynamic parts with check_static, fix them, and train the compiled model.

    python examples/own_model.py --steps 200

The first model is written for a GPU: it removes the padding with a boolean mask, reads the number of graphs from the
data and branches on a value. Each of these lines makes a shape or a path depend on the data; `check_static` lists the
lines with a remedy for each. The second model follows the remedies, and both models compute the same values.
"""

import argparse
from itertools import cycle, islice

import torch
from torch import Tensor, nn

from popgeo import FixedSizeDataLoader, FixedSizeOptions, Molecules, ipu
from popgeo.command_line import run
from popgeo.nn import l1_loss
from popgeo.ops import gather, global_add_pool, scatter

GAP = Molecules.target_index("gap")


class Dynamic(nn.Module):
    """A layer of messages between neighbors, and a sum over each molecule's atoms."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(in_channels, channels), nn.Linear(channels, channels)
        self.out = nn.Linear(channels, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, edges_mask: Tensor) -> Tensor:
        """Return the gap of each molecule in eV [num_graphs]."""
        src, dst = edge_index[:, edges_mask]
        h = self.lin1(x).relu()
        h = h + torch.zeros_like(h).index_add(0, dst, self.lin2(h)[src])
        if h.abs().max() > 1e4:
            h = h / 1e4
        num_graphs = int(batch.max()) + 1
        return self.out(h.new_zeros(num_graphs, h.size(1)).index_add(0, batch, h)).flatten()


class Static(Dynamic):
    """The same model with fixed shapes and a fixed path."""

    def __init__(self, in_channels: int, channels: int, num_graphs: int) -> None:
        super().__init__(in_channels, channels)
        self.num_graphs = num_graphs

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, edges_mask: Tensor) -> Tensor:
        """Return the gap of each molecule in eV [num_graphs]."""
        h = self.lin1(x).relu()
        message = torch.where(edges_mask.unsqueeze(1), gather(self.lin2(h), edge_index[0]), 0.0)
        h = h + scatter(message, edge_index[1], dim=0, dim_size=h.size(0))
        h = torch.where(h.abs().max() > 1e4, h / 1e4, h)
        return self.out(global_add_pool(h, batch, self.num_graphs)).flatten()


class Training(nn.Module):
    """The model with its loss, in the form that the executor expects."""

    def __init__(self, model: Static) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, edges_mask: Tensor, y: Tensor, graphs_mask: Tensor
    ) -> Tensor:
        """Return the mean absolute error of the real molecules in eV []."""
        return l1_loss(self.model(x, edge_index, batch, edges_mask), y[:, GAP], graphs_mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=2000, help="number of bundled molecules")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="training steps of the static model")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    molecules = Molecules()[: arguments.molecules]
    sizes = FixedSizeOptions.tune(molecules, target_graphs=16, verbose=False)
    loader = FixedSizeDataLoader(molecules, fixed_size_options=sizes, fixed_size_strategy="StreamPack")
    batch = next(iter(loader))
    inputs = batch.x, batch.edge_index, batch.batch, batch.edges_mask

    dynamic = Dynamic(molecules.num_features, arguments.channels)
    problems = ipu.check_static(dynamic, *inputs)
    print(f"Dynamic: {len(problems)} places are not static")
    for problem in problems:
        print(f"- {problem}")

    static = Static(molecules.num_features, arguments.channels, sizes.num_graphs)
    static.load_state_dict(dynamic.state_dict())
    print(f"Static: {len(ipu.check_static(static, *inputs))} places are not static")
    with torch.no_grad():
        expected = dynamic(*inputs)  # ends with the first padding graph, which has the padding nodes
        difference = (static(*inputs)[: len(expected)] - expected)[batch.graphs_mask[: len(expected)]].abs().max()
    print(f"largest difference between the two on real molecules: {difference:.1e} eV")

    model = Training(static)
    step = ipu.training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    losses = []
    for batch in islice(cycle(loader), arguments.steps):
        losses.append(float(step(batch)))
    first, last = (sum(part) / len(part) for part in (losses[:10], losses[-10:]))
    print(f"{step}\nloss {first:.2f} eV over the first ten steps, {last:.2f} eV over the last ten")


if __name__ == "__main__":
    run(main)
