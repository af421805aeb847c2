"""Classify the papers of Cora or CiteSeer with GCN on the public split, over several seeds.

    python examples/gcn_planetoid.py --root data/planetoid --name Cora CiteSeer

The setting follows arXiv:1609.02907: two layers of 16 channels, dropout 0.5 on both layers' inputs, Adam 0.01, weight
decay 5e-4 on the first layer, 200 epochs; the test accuracy is taken at the lowest validation loss.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.transforms import NormalizeFeatures

from popgeo.command_line import pyg_dataset, run
from popgeo.nn import GCN, accuracy, cross_entropy
from popgeo.progress import progress


def test_accuracy(data: Data, num_classes: int, seed: int, epochs: int) -> float:
    """Train from a seed; return the test accuracy at the lowest validation loss."""
    torch.manual_seed(seed)
    model = GCN(data.num_features, hidden_channels=16, num_layers=2, out_channels=num_classes, dropout=0.5)
    first, second = (list(conv.parameters()) for conv in model.convs)
    groups: list[dict[str, Any]] = [{"params": first, "weight_decay": 5e-4}, {"params": second}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    best, chosen = float("inf"), 0.0
    for _ in range(epochs):
        model.train()
        logits = model(F.dropout(data.x, 0.5), data.edge_index)
        optimizer.zero_grad()
        cross_entropy(logits, data.y, data.train_mask).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(data.x, data.edge_index)
            loss = float(cross_entropy(logits, data.y, data.val_mask))
            if loss < best:
                best, chosen = loss, float(accuracy(logits, data.y, data.test_mask))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data/planetoid", help="folder of PyG's Planetoid datasets")
    parser.add_argument("--name", nargs="+", default=["Cora", "CiteSeer"], help="datasets")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    arguments = parser.parse_args()
    print(f"{'dataset':10} {'mean':>7} {'std':>6}   test accuracy in % over {arguments.seeds} seeds")
    for name in arguments.name:
        files = f"ind.{name.lower()}.x, tx, allx, y, ty, ally, graph and test.index in {arguments.root}/{name}/raw"
        dataset = pyg_dataset(partial(Planetoid, arguments.root, name, transform=NormalizeFeatures()), files)
        runs = [
            100 * test_accuracy(dataset[0], dataset.num_classes, seed, arguments.epochs)
            for seed in progress(range(arguments.seeds), name, "seeds")
        ]
        print(f"{name:10} {statistics.mean(runs):7.2f} {statistics.pstdev(runs):6.2f}", flush=True)


if __name__ == "__main__":
    run(main)
