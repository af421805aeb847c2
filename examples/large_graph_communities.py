"""Find the community of each node of a large generated graph, from sampled neighbors and features kept on disk.

    python examples/large_graph_communities.py

200,000 nodes belong to 20 communities; most edges of a node stay in its community. A node's features are the mean of
its community plus much larger noise. So a network without edges performs badly, and a network that averages over
neighbors performs well. The features are a memory map in half precision; a batch reads only its own rows.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from popgeo import FixedSizeNeighborLoader, inference_model, training_model
from popgeo.command_line import run
from popgeo.nn import cross_entropy


def planted(num_nodes: int, num_communities: int, folder: Path, degree: int = 10, stays: float = 0.7) -> Data:
    """Return a graph with planted communities and 32 features in half precision on disk."""
    generator = torch.Generator().manual_seed(0)
    size = num_nodes // num_communities
    num_nodes = size * num_communities
    community = torch.randperm(num_nodes, generator=generator) % num_communities
    members = community.argsort(stable=True).view(num_communities, size)
    source = torch.randint(num_nodes, (num_nodes * degree // 2,), generator=generator)
    near = members[community[source], torch.randint(size, source.shape, generator=generator)]
    far = torch.randint(num_nodes, source.shape, generator=generator)
    other = torch.where(torch.rand(source.shape, generator=generator) < stays, near, far)
    means = torch.randn(num_communities, 32, generator=generator)
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float16, shape=(num_nodes, 32))
    for start in range(0, num_nodes, 50_000):
        of_nodes = means[community[start : start + 50_000]]
        x[start : start + 50_000] = (0.3 * of_nodes + torch.randn(of_nodes.shape, generator=generator)).numpy()
    edge_index = torch.stack([torch.cat([source, other]), torch.cat([other, source])])
    return Data(x=np.load(folder / "x.npy", mmap_mode="r"), edge_index=edge_index, y=community)


class Training(nn.Module):
    """A network with its loss on the seeds, the first nodes of a batch."""

    def __init__(self, network: nn.Module, num_seeds: int) -> None:
        super().__init__()
        self.network, self.num_seeds = network, num_seeds

    def logits(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of the seeds [num_seeds, num_communities]."""
        return self.network(x.float(), edge_index)[: self.num_seeds]

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, seeds_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of correctly classified seeds, and the loss."""
        logits, y, real = self.logits(x, edge_index), y[: self.num_seeds], seeds_mask[: self.num_seeds]
        right = torch.where(real, logits.argmax(1) == y, False).sum()
        return right, cross_entropy(logits, y, real)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--communities", type=int, default=20)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=512, help="seeds per batch")
    parser.add_argument("--labelled", type=float, default=0.1, help="share of labelled nodes")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        data = planted(arguments.nodes, arguments.communities, Path(folder))
        shuffled = torch.randperm(len(data.y))
        train, test = shuffled.split([count := int(arguments.labelled * len(data.y)), len(data.y) - count])
        choices = {"batch_size": arguments.batch_size, "sort_edges": True, "background": True}
        loader = FixedSizeNeighborLoader(data, [10, 10], train, shuffle=True, **choices)
        sizes = loader.fixed_size_options
        test = test[: count // 2]
        held_out = FixedSizeNeighborLoader(data, [10, 10], test, fixed_size_options=sizes, **choices)
        print(loader)
        network = GraphSAGE(32, arguments.channels, num_layers=2, out_channels=arguments.communities)
        model = Training(network, arguments.batch_size)
        trainer = training_model(model.train(), optimizer=torch.optim.Adam(model.parameters(), lr=3e-3))
        predictor = inference_model(model)
        for epoch in range(arguments.epochs):
            start, losses = time.perf_counter(), []
            for batch in loader:
                losses.append(float(trainer(batch.x, batch.edge_index, batch.y, batch.seeds_mask)[1]))
            right = [int(predictor(b.x, b.edge_index, b.y, b.seeds_mask)[0]) for b in held_out]
            print(
                f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}, accuracy on nodes held out "
                f"{sum(right) / len(test):.1%}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    run(main)
