"""Train a GIN on a TUDataset with classes of different sizes, with plain PyG and with a compiled step.

    python examples/class_imbalance_tudataset.py --root data/tu --name MUTAG

Both sides have the same model with `torch.nn.BatchNorm1d`, the same initial weights and the same class weights. The
splits are scikit-learn's stratified splits. The script prints accuracy, macro F1 and the confusion matrix of the test
graphs over all seeds, and the training time. PyG downloads the dataset if it is missing. The script needs
`pip install scikit-learn`.
"""

import argparse
import time
from functools import partial

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool
from torch_geometric.nn.models import MLP

import popgeo
from popgeo.command_line import pyg_dataset, run
from popgeo.nn import confusion_matrix, convert_norms, cross_entropy, f1_score

BATCH_SIZE, LEARNING_RATE = 16, 5e-3


class Net(nn.Module):
    """Three GIN layers of PyG, each followed by torch's batch norm."""

    def __init__(self, in_channels: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        widths = [in_channels, hidden, hidden]
        self.convs = nn.ModuleList(GINConv(MLP([width, hidden, hidden], norm=None)) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in widths)
        self.lin = nn.Linear(hidden, num_classes)

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits [num_graphs, num_classes]."""
        x = batch.x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, batch.edge_index)).relu()
        return self.lin(global_add_pool(x, batch.batch, batch.num_graphs) / 20)


class Training(nn.Module):
    """The model with its loss, in the form that a compiled step expects."""

    weight: Tensor

    def __init__(self, net: Net, weight: Tensor) -> None:
        super().__init__()
        self.net = convert_norms(net)  # its norms ignore padding
        self.register_buffer("weight", weight)

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of the real graphs."""
        return cross_entropy(self.net(batch), batch.y, batch.graphs_mask, self.weight)


def trained_by_pyg(net: Net, training: TUDataset, weight: Tensor, epochs: int) -> Net:
    """Train with plain PyG; return the model."""
    loader = DataLoader(training, BATCH_SIZE, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(batch), batch.y, weight).backward()
            optimizer.step()
        schedule.step()
    return net


def trained_by_popgeo(net: Net, training: TUDataset, weight: Tensor, epochs: int) -> Net:
    """Train with a compiled step; return the model."""
    sizes = popgeo.FixedSizeOptions.tune(training, target_graphs=BATCH_SIZE, verbose=False)
    loader = popgeo.FixedSizeDataLoader(training, shuffle=True, fixed_size_options=sizes, fixed_size_strategy="Window")
    model = Training(net, weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    step = popgeo.compile_step(model, optimizer)
    for _ in range(epochs):
        for batch in loader:
            step(batch)
        schedule.step()
    net.load_state_dict(model.net.state_dict())
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data/tu", help="folder of PyG's TUDatasets")
    parser.add_argument("--name", default="MUTAG", help="dataset")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5, help="number of splits")
    arguments = parser.parse_args()
    files = f"{arguments.name}_A.txt and the others of its archive in {arguments.root}/{arguments.name}/raw"
    dataset = pyg_dataset(partial(TUDataset, arguments.root, arguments.name), files)
    print(f"{arguments.name}: graphs of each class {dataset.y.bincount().tolist()}", flush=True)
    for name, train in (("PyG", trained_by_pyg), ("popgeo", trained_by_popgeo)):
        rows, seconds = [], 0.0
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            training, test = train_test_split(
                torch.arange(len(dataset)), test_size=0.25, stratify=dataset.y, random_state=seed
            )
            counts = dataset.y[training].bincount(minlength=dataset.num_classes)
            weight = len(training) / (dataset.num_classes * counts)
            net, start = Net(dataset.num_features, arguments.hidden, dataset.num_classes), time.monotonic()
            net = train(net, dataset[training], weight, arguments.epochs).eval()
            seconds += time.monotonic() - start
            with torch.no_grad():
                held_out = next(iter(DataLoader(dataset[test], len(test))))
                rows.append((net(held_out), held_out.y))
        logits, classes = (torch.cat(parts) for parts in zip(*rows, strict=True))
        matrix = confusion_matrix(logits, classes)
        print(
            f"{name}: accuracy {matrix.diagonal().sum() / matrix.sum():.3f}, macro F1 "
            f"{f1_score(logits, classes, average='macro'):.3f}, confusion matrix {matrix.int().tolist()}, "
            f"training {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
