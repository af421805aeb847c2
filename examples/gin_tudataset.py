"""Classify molecules with GIN in 10-fold cross-validation, on batches of fixed size.

    python examples/gin_tudataset.py --root data/tu --name MUTAG NCI1

The setting follows arXiv:1810.00826: five layers with batch norm, the sum of all nodes of every layer as readout,
dropout, Adam. As in the paper, one epoch is chosen for all folds: the maximum of the mean of the ten validation curves.
This choice uses the validation data, so the script also prints the unbiased accuracy of the last epoch.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset

from popgeo.command_line import pyg_dataset, run
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import GIN, BatchNorm, accuracy, cross_entropy
from popgeo.progress import progress

FOLDS = 10


class Classifier(nn.Module):
    """GIN, the sum of each graph's nodes over all layers, and a small network for the classes.

    The sums grow with the graphs. A batch norm over the real graphs brings them to one scale; without it, Adam's
    steps at this rate diverge.
    """

    def __init__(self, in_channels: int, hidden_channels: int, num_classes: int) -> None:
        super().__init__()
        self.gin = GIN(in_channels, hidden_channels, 5, hidden_channels, norm="batch_norm", jk="cat", readout="add")
        self.norm = BatchNorm(hidden_channels)
        self.lin = nn.Linear(hidden_channels, num_classes)

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits [num_graphs, num_classes]."""
        x = self.gin(
            batch.x,
            batch.edge_index,
            batch=batch.batch,
            num_graphs=batch.num_graphs,
            nodes_mask=batch.nodes_mask,
            edges_mask=batch.edges_mask,
        )
        x = F.relu(self.norm(x, nodes_mask=batch.graphs_mask))  # [num_graphs, hidden]
        return self.lin(F.dropout(x, 0.3, self.training))


def stratified_folds(y: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the training and validation graphs of each fold, with equal class shares in all folds."""
    generator = torch.Generator().manual_seed(seed)
    fold = torch.empty_like(y)
    for label in y.unique():
        members = (y == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        fold[members] = torch.arange(len(members)) % FOLDS
    for i in range(FOLDS):
        yield (fold != i).nonzero().flatten(), (fold == i).nonzero().flatten()


def loader(dataset: TUDataset, batch_size: int, shuffle: bool) -> FixedSizeDataLoader:
    """Return a loader of batches with room for about `batch_size` average graphs, and for the largest graph."""
    nodes = torch.tensor([data.num_nodes for data in dataset]).double()
    edges = torch.tensor([data.num_edges for data in dataset]).double()
    return FixedSizeDataLoader(
        dataset,
        batch_size=batch_size + 1,
        num_nodes=int(max(nodes.mean() * batch_size, nodes.max())) + 1,
        num_edges=int(max(edges.mean() * batch_size * 1.02, edges.max())),
        shuffle=shuffle,
        fixed_size_strategy="StreamPack",
    )


def validation_curve(training: TUDataset, valid: TUDataset, hidden: int, batch_size: int, epochs: int) -> Tensor:
    """Return the accuracy on the validation graphs after each epoch [epochs]."""
    model = Classifier(training.num_features, hidden, training.num_classes)
    batches, held_out = loader(training, batch_size, shuffle=True), list(loader(valid, batch_size, shuffle=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    curve = []
    for _ in range(epochs):
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(batch), batch.y, batch.graphs_mask).backward()
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum(accuracy(model(b), b.y, b.graphs_mask) * b.graphs_mask.sum() for b in held_out)
        curve.append(float(right) / len(valid))
    return torch.tensor(curve)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data/tu", help="folder of PyG's TUDatasets")
    parser.add_argument("--name", nargs="+", default=["MUTAG", "NCI1"], help="datasets")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--folds", type=int, default=FOLDS, help="number of folds to run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.name:
        start = time.monotonic()
        torch.manual_seed(arguments.seed)
        files = f"{name}_A.txt, {name}_graph_indicator.txt and the others of its archive in {arguments.root}/{name}/raw"
        dataset = pyg_dataset(partial(TUDataset, arguments.root, name), files)
        folds = list(stratified_folds(dataset.y, arguments.seed))[: arguments.folds]
        curves = torch.stack(
            [
                validation_curve(
                    dataset[train], dataset[valid], arguments.hidden, arguments.batch_size, arguments.epochs
                )
                for train, valid in progress(folds, name, "folds")
            ]
        )
        mean = 100 * curves.mean(0)
        best = int(mean.argmax())
        print(
            f"{name}: {mean[best]:.2f} % at epoch {best + 1} (chosen on the mean curve, std over folds "
            f"{100 * curves[:, best].std():.2f}), {mean[-1]:.2f} % at the last epoch, {arguments.epochs}; "
            f"{time.monotonic() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
