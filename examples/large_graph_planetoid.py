"""Classify the papers of Cora or CiteSeer from parts of the graph: sampled neighbors, and clusters.

    python examples/large_graph_planetoid.py --root data/planetoid --name Cora

The graph is small, but the example never uses the whole graph. GraphSAGE (arXiv:1706.02216) learns from labelled papers
with sampled neighbors, and GCN from clusters with all edges between them (Cluster-GCN, arXiv:1905.07953), both on the
public split. Every batch has the same shape, so the training step is compiled once. The test accuracy, computed with
all neighbors, is taken at the lowest validation loss.
"""

import argparse
import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import NormalizeFeatures
from tqdm import tqdm

from popgeo import FixedSizeClusterLoader, FixedSizeNeighborLoader, training_model
from popgeo.command_line import run
from popgeo.nn import GCN, accuracy, cross_entropy


class Training(nn.Module):
    """A network and its loss on the labelled papers of a batch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
        """Return the loss on the labelled papers []."""
        logits = self.network(F.dropout(x, 0.5, self.training), edge_index)
        return cross_entropy(logits, y, labelled)


def neighbors(data: Data, num_classes: int, seed: int) -> tuple[nn.Module, FixedSizeNeighborLoader]:
    """Return GraphSAGE and a loader of labelled papers with sampled neighbors."""
    network = GraphSAGE(data.num_features, 64, num_layers=2, out_channels=num_classes, dropout=0.5)
    loader = FixedSizeNeighborLoader(
        data, [10, 10], data.train_mask, batch_size=70, shuffle=True, seed=seed, sort_edges=True
    )
    return network, loader


def clusters(data: Data, num_classes: int, seed: int) -> tuple[nn.Module, FixedSizeClusterLoader]:
    """Return GCN and a loader of batches with a third of 24 clusters."""
    network = GCN(data.num_features, hidden_channels=64, num_layers=2, out_channels=num_classes, dropout=0.5)
    loader = FixedSizeClusterLoader(data, num_parts=24, batch_size=8, seed=seed, sort_edges=True)
    return network, loader


MODELS = {"GraphSAGE": neighbors, "Cluster-GCN": clusters}


def test_accuracy(name: str, data: Data, num_classes: int, seed: int, epochs: int) -> float:
    """Train from a seed; return the test accuracy at the lowest validation loss."""
    torch.manual_seed(seed)
    network, loader = MODELS[name](data, num_classes, seed)
    model = Training(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    step = training_model(model.train(), optimizer=optimizer)
    best, chosen, compiled = float("inf"), 0.0, None
    for epoch in range(epochs):
        model.train()
        for batch in loader:
            mask = batch.train_mask & (batch.seeds_mask if name == "GraphSAGE" else batch.nodes_mask)
            step(batch.x, batch.edge_index, batch.y, mask)
            compiled = compiled or step.graph
            assert step.graph is compiled, "every batch has the same shape, so there is one compilation"
        if epoch % 2:
            model.eval()
            with torch.no_grad():
                logits = network(data.x, data.edge_index)
                loss = float(cross_entropy(logits, data.y, data.val_mask))
            if loss < best:
                best, chosen = loss, float(accuracy(logits, data.y, data.test_mask))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data/planetoid", help="folder of PyG's Planetoid datasets")
    parser.add_argument("--name", default="Cora", help="dataset")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=50)
    arguments = parser.parse_args()
    dataset = Planetoid(arguments.root, arguments.name, transform=NormalizeFeatures())
    print(f"{'model':12} {'mean':>7} {'std':>6}   test accuracy in % over {arguments.seeds} seeds, {arguments.name}")
    for name in arguments.model:
        runs = [
            100 * test_accuracy(name, dataset[0], dataset.num_classes, seed, arguments.epochs)
            for seed in tqdm(range(arguments.seeds), name, unit=" seeds", leave=False, delay=1)
        ]
        print(f"{name:12} {statistics.mean(runs):7.2f} {statistics.pstdev(runs):6.2f}", flush=True)


if __name__ == "__main__":
    run(main)
