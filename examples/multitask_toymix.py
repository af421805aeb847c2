"""Train one model on QM9, Tox21 and ZINC at once, in mixed packs of fixed size: the tasks of Graphium's ToyMix.

    python examples/multitask_toymix.py --root data --budget 15

`--root` holds `QM9`, `molnet` and `ZINC`, roots of PyG's QM9, MoleculeNet and ZINC(subset=True); MoleculeNet needs
rdkit: pip install rdkit. A molecule has its heavy atoms and bonds, and 19 labels of QM9, 12 of Tox21 or one of ZINC.
The other labels are NaN and have no effect. All tasks share a trunk; each task has a head. The learning rate follows
the budget in minutes, or the epochs if `--epochs` is given.

The script prints the losses and validation metrics of each epoch, and at the end the test metrics next to the published
metrics of multitask GINE (arXiv:2310.04292), which differ: 300 epochs, QM9's fluorides included, and three labels per
molecule of ZINC (PyG has one). The errors of QM9 and ZINC are in standard deviations of the training labels. Expect
0.10, 0.85 and 0.14 after eleven epochs: `--budget 27` on one busy core, including 7 minutes of processor time. With
`--molecules 7000 --budget 2`, four epochs, expect 0.28, 0.80 and 0.21.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import QM9, ZINC, MoleculeNet

from popgeo import ipu
from popgeo.command_line import pyg_dataset, run
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import (
    GCN,
    GIN,
    GINE,
    BatchNorm,
    Multitask,
    RandomWalkEncoding,
    Task,
    average_precision,
    binary_cross_entropy,
    mean_absolute_error,
    mean_over_tasks,
    pearson_r,
    r2_score,
    roc_auc,
    root_mean_squared_error,
)
from popgeo.progress import progress

TASKS = (
    Task(name="qm9", num_labels=19),
    Task(name="tox21", num_labels=12, loss=binary_cross_entropy),
    Task(name="zinc", num_labels=1),
)
TRUNKS = {"gine": GINE, "gin": GIN, "gcn": GCN}
STEPS = 16  # steps of the random walk
BOND_CHANNELS = 16
UNKNOWN = 0  # code of an unknown number of hydrogens; the code of a known number is one more
# Element and charge of each of ZINC's kinds of atoms: C O N F CH S Cl O- NH+ Br NH3+ NH2+ N+ N- S- I P OH+ NH- O+ S+
ZINC_ATOMS = torch.tensor(
    [
        [6, 8, 7, 9, 6, 16, 17, 8, 7, 35, 7, 7, 7, 7, 16, 53, 15, 8, 7, 8, 16, *[0] * 7],
        [0, 0, 0, 0, 0, 0, 0, -1, 1, 0, 1, 1, 1, -1, -1, 0, 0, 1, -1, 1, 1, *[0] * 7],
    ]
)
BONDS = torch.zeros(23, dtype=torch.long)  # RDKit's kinds of bonds as 1 single, 2 double, 3 triple, 4 aromatic
BONDS[[1, 2, 3, 12]] = torch.tensor([1, 2, 3, 4])


class ToyMix(nn.Module):
    """Embedded atoms and bonds, a trunk, a head for each task, and the sum of their losses."""

    def __init__(self, name: str, channels: int, num_layers: int, num_graphs: int, dropout: float) -> None:
        super().__init__()
        self.num_graphs = num_graphs
        self.kinds = nn.ModuleList(nn.Embedding(size, channels) for size in (119, 3, 6))
        self.bonds = nn.Embedding(5, BOND_CHANNELS)
        self.norm = BatchNorm(STEPS)
        arguments = {"edge_dim": BOND_CHANNELS} if name == "gine" else {}
        trunk = TRUNKS[name](
            channels + STEPS, channels, num_layers, norm="batch_norm", jk="cat", dropout=dropout, **arguments
        )
        self.multitask = Multitask(trunk, channels, TASKS)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        random_walk: Tensor,
        batch: Tensor,
        labels: Tensor,
        nodes_mask: Tensor,
        edges_mask: Tensor,
        graphs_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the predictions [num_graphs, 32], each task's loss [3], and the training loss."""
        atoms = torch.stack([kind(x[:, i]) for i, kind in enumerate(self.kinds)]).sum(0)  # [num_nodes, channels]
        predictions = self.multitask(
            torch.cat([atoms, self.norm(random_walk, nodes_mask=nodes_mask)], 1),
            edge_index,
            edge_attr=self.bonds(edge_attr),
            batch=batch,
            num_graphs=self.num_graphs,
            nodes_mask=nodes_mask,
            edges_mask=edges_mask,
        )
        of_tasks = dict(zip(predictions, labels.split([task.num_labels for task in TASKS], 1), strict=True))
        loss, each = self.multitask.losses(predictions, of_tasks, graphs_mask=graphs_mask)
        return torch.cat([*predictions.values()], 1), torch.stack([*each.values()]).detach(), ipu.identity_loss(loss)


def of_qm9(data: Data) -> Data:
    """Convert a molecule of QM9: keep heavy atoms, count hydrogens."""
    heavy = data.z > 1
    source, destination = data.edge_index
    at_hydrogen = data.z.new_zeros(len(data.z)).index_add(0, destination, (~heavy[source]).long())
    kept = heavy[source] & heavy[destination]
    place = heavy.cumsum(0) - 1
    x = torch.stack([data.z, torch.ones_like(data.z), (at_hydrogen + 1).clamp(max=5)], 1)[heavy]
    bonds = data.edge_attr[kept].argmax(1) + 1
    return Data(x=x, edge_index=place[data.edge_index[:, kept]], edge_attr=bonds, labels=row_of(0, data.y))


def of_tox21(data: Data) -> Data:
    x = torch.stack([data.x[:, 0], (data.x[:, 3] - 5).clamp(-1, 1) + 1, (data.x[:, 4] + 1).clamp(max=5)], 1)
    return Data(x=x, edge_index=data.edge_index, edge_attr=BONDS[data.edge_attr[:, 0]], labels=row_of(1, data.y))


def of_zinc(data: Data) -> Data:
    element, charge = ZINC_ATOMS[:, data.x.flatten()]
    x = torch.stack([element, charge + 1, torch.full_like(element, UNKNOWN)], 1)
    return Data(x=x, edge_index=data.edge_index, edge_attr=data.edge_attr, labels=row_of(2, data.y))


def row_of(task: int, y: Tensor) -> Tensor:
    """Return a row of all labels [1, 32], NaN except for the labels of `task`."""
    parts = [torch.full((1, one.num_labels), torch.nan) for one in TASKS]
    parts[task] = y.view(1, -1)
    return torch.cat(parts, 1)


def load(root: Path, limit: int | None) -> tuple[list[Data], list[int]]:
    """Return all molecules, and the part of each: training (0), validation (1) or test (2).

    ZINC has its published split. Of QM9 and Tox21, a tenth each is held out for validation and test.
    """
    walk = RandomWalkEncoding(STEPS)
    molecules, parts = [], []

    def add(name: str, dataset: object, convert: Callable[[Data], Data], part: int | None) -> None:
        for i, data in enumerate(progress(dataset[:limit], name, "molecules")):  # type: ignore[index]
            if data.edge_index.numel():
                molecules.append(walk(convert(data)))
                parts.append(max(0, i % 10 - 7) if part is None else part)

    qm9 = pyg_dataset(lambda: QM9(str(root / "QM9")), f"gdb9.sdf and gdb9.sdf.csv in {root}/QM9/raw")
    add("QM9", qm9.shuffle(), of_qm9, None)
    tox21 = pyg_dataset(lambda: MoleculeNet(str(root / "molnet"), "Tox21"), f"tox21.csv in {root}/molnet/tox21/raw")
    add("Tox21", tox21.shuffle(), of_tox21, None)
    for part, split in enumerate(("train", "val", "test")):
        files = f"{split}.pickle and {split}.index in {root}/ZINC/raw"
        add("ZINC", pyg_dataset(partial(ZINC, str(root / "ZINC"), subset=True, split=split), files), of_zinc, part)
    return molecules, parts


def call(model: ipu.CompiledStep, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return predictions and losses of one batch."""
    return model(
        batch.x,
        batch.edge_index,
        batch.edge_attr,
        batch.random_walk,
        batch.batch,
        batch.labels,
        batch.nodes_mask,
        batch.edges_mask,
        batch.graphs_mask,
    )


def predict(model: ipu.CompiledStep, batches: FixedSizeDataLoader) -> list[tuple[Tensor, Tensor]]:
    """Return predictions and labels of each task [graphs, num_labels]."""
    found = [(call(model, batch)[0][batch.graphs_mask], batch.labels[batch.graphs_mask]) for batch in batches]
    out, labels = (torch.cat(rows) for rows in zip(*found, strict=True))
    widths = [task.num_labels for task in TASKS]
    return list(zip(out.split(widths, 1), labels.split(widths, 1), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of QM9, molnet and ZINC")
    parser.add_argument("--model", choices=TRUNKS, default="gine")
    parser.add_argument("--budget", type=float, default=15.0, help="minutes of training")
    parser.add_argument("--epochs", type=int, help="train for this number of epochs instead")
    parser.add_argument("--molecules", type=int, help="molecules to use from each dataset and split")
    parser.add_argument("--channels", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=64, help="mean number of molecules per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    molecules, parts = load(arguments.root, arguments.molecules)
    part = torch.tensor(parts)
    labels = torch.cat([data.labels for data in molecules])
    mean, std = standards(labels[part == 0])
    for data in molecules:
        data.labels = (data.labels - mean) / std
    store = FlatStore.from_dataset(molecules)
    views = [store.view((part == i).nonzero().flatten().numpy()) for i in range(3)]
    sizes = FixedSizeOptions.tune(views[0], target_graphs=arguments.batch_size)
    loaders = [
        FixedSizeDataLoader(
            view, shuffle=view is views[0], fixed_size_options=sizes, fixed_size_strategy="Window", seed=arguments.seed
        )
        for view in views
    ]
    model = ToyMix(arguments.model, arguments.channels, arguments.layers, sizes.num_graphs, arguments.dropout)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; {loaders[0]}")
    start = time.monotonic()

    def done(step: int) -> float:
        """Return the progress as a share of the epochs or of the minutes."""
        if arguments.epochs is not None:
            return step / (arguments.epochs * len(loaders[0]))
        return min(1.0, (time.monotonic() - start) / (60 * arguments.budget))

    def rate(step: int) -> float:
        """Return the learning rate: a linear rise over the first steps, then half a cosine down to zero."""
        return arguments.lr * min(1.0, (step + 1) / 500) * 0.5 * (1 + math.cos(math.pi * done(step)))

    options = ipu.Options(strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
    train = ipu.training_model(model.train(), options, optimizer, learning_rate=rate)
    evaluate = ipu.inference_model(model.eval(), options)
    epoch = step = 0
    while done(step) < 1:
        losses, began = [], time.monotonic()
        for batch in loaders[0]:
            losses.append(call(train, batch)[1])
            step += 1
            if done(step) >= 1:
                break
        epoch += 1
        speed = int((part == 0).sum()) * len(losses) / len(loaders[0]) / (time.monotonic() - began)
        of_tasks = ", ".join(f"{t.name} {x:.3f}" for t, x in zip(TASKS, torch.stack(losses).mean(0), strict=True))
        qm9, tox21, zinc = predict(evaluate, loaders[1])
        print(
            f"epoch {epoch}: {time.monotonic() - start:.0f} s, losses {of_tasks}; valid QM9 MAE "
            f"{mean_over_tasks(mean_absolute_error, *qm9):.3f}, Tox21 AUROC {mean_over_tasks(roc_auc, *tox21):.3f}, "
            f"ZINC MAE {mean_over_tasks(mean_absolute_error, *zinc):.3f}; {speed:,.0f} graphs/s",
            flush=True,
        )
    print(f"a step: {train.report.total_cycles:,.0f} modelled cycles of a Bow IPU")
    print(f"{arguments.model}, {epoch} epochs, {(time.monotonic() - start) / 60:.1f} min:")
    print_test(predict(evaluate, loaders[2]), std)


def standards(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation [1, 32] of the known labels; 0 and 1 for Tox21's classes."""
    mean = labels.nanmean(0, keepdim=True)
    std = (labels - mean).square().nanmean(0, keepdim=True).sqrt()
    first, last = TASKS[0].num_labels, TASKS[0].num_labels + TASKS[1].num_labels
    mean[:, first:last], std[:, first:last] = 0.0, 1.0
    return mean, std


def print_test(found: list[tuple[Tensor, Tensor]], std: Tensor) -> None:
    """Print the metrics of each task next to the published metrics."""
    qm9, tox21, zinc = found

    def of(metric: Callable[..., Tensor], pair: tuple[Tensor, Tensor]) -> str:
        return f"{float(mean_over_tasks(metric, *pair)):.3f}"

    in_pygs_unit = float(mean_over_tasks(mean_absolute_error, *zinc)) * float(std[0, -1])
    rest = [
        f"RMSE {of(root_mean_squared_error, pair)}, Pearson {of(pearson_r, pair)}, R2 {of(r2_score, pair)}"
        for pair in (qm9, zinc)
    ]
    print(
        f"test QM9 MAE {of(mean_absolute_error, qm9)} (published 0.102), {rest[0]}\n"
        f"test Tox21 AUROC {of(roc_auc, tox21)} (published 0.836), average precision {of(average_precision, tox21)}\n"
        f"test ZINC MAE {of(mean_absolute_error, zinc)} (published 0.147, of three labels), {rest[1]}; "
        f"in PyG's unit MAE {in_pygs_unit:.3f}"
    )


if __name__ == "__main__":
    run(main)
