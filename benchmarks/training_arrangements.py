"""Effect of the arrangement of batches on training: ordinary, padded and packed batches of the same molecules.

    python benchmarks/training_arrangements.py

GIN with batch norm learns the HOMO-LUMO gap of the bundled molecules, from the same weights, in the same number of
updates, with several seeds for weights and order; the error is measured on held-out molecules. Only the composition of
batches differs; the last rows show two common mistakes. One thread; five minutes.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import torch
from timing import one_thread
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import GIN
from popgeo.progress import progress

GAP = Molecules.target_index("gap")


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The composition of batches, and the loss of an update.

    Attributes:
        name: Name in the table.
        strategy: Strategy of `FixedSizeDataLoader`; None for PyG's ordinary batches.
        graphs: Graphs per batch; the mean for packed batches.
        rate: Factor on the learning rate.
        norms_see_padding: Whether batch norm uses padding nodes as real nodes.
        loss: Mean over the real graphs ("real"), their sum divided by a fixed number ("fixed"), or mean over all slots,
            padding included ("slots").
    """

    name: str
    strategy: str | None
    graphs: int = 32
    rate: float = 1.0
    norms_see_padding: bool = False
    loss: str = "real"


ARRANGEMENTS = (
    Arrangement(name="ordinary batches of 32", strategy=None),
    Arrangement(name="padded to 32", strategy="PadToMax"),
    Arrangement(name="packed, 32 on average", strategy="Window"),
    Arrangement(name="packed, loss over a fixed 32", strategy="Window", loss="fixed"),
    Arrangement(name="packed, 128 on average, a quarter of the updates", strategy="Window", graphs=128),
    Arrangement(name="the same, learning rate twice as high", strategy="Window", graphs=128, rate=2.0),
    Arrangement(name="padded, norms see padding", strategy="PadToMax", norms_see_padding=True),
    Arrangement(name="packed, padding graphs in the loss", strategy="Window", loss="slots"),
)


def endless(arrangement: Arrangement, molecules: list[Data], seed: int) -> Iterator[Batch]:
    """Yield batches, epoch after epoch, each epoch in a different order."""
    if arrangement.strategy is None:
        torch.manual_seed(seed)
        loader = DataLoader(molecules, arrangement.graphs, shuffle=True, drop_last=True)
    elif arrangement.strategy == "PadToMax":
        loader = FixedSizeDataLoader(molecules, arrangement.graphs + 1, shuffle=True, drop_last=True, seed=seed)
    else:
        sizes = FixedSizeOptions.tune(molecules, arrangement.graphs, verbose=False)
        loader = FixedSizeDataLoader(
            molecules, shuffle=True, fixed_size_options=sizes, fixed_size_strategy="Window", seed=seed
        )
    while True:
        yield from loader


def train(arrangement: Arrangement, molecules: list[Data], updates: int, seed: int) -> tuple[GIN, Tensor]:
    """Return the trained model, and the number of graphs of each batch."""
    torch.manual_seed(seed)
    model = GIN(molecules[0].num_features, 64, 3, 1, norm="batch_norm", jk="last", readout="mean")
    nn.init.constant_(model.lin.bias, float(torch.stack([one.y[0, GAP] for one in molecules]).mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3 * arrangement.rate)
    updates = updates * 32 // arrangement.graphs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    counts = []
    for batch, _ in zip(endless(arrangement, molecules, seed), range(updates), strict=False):
        nodes_mask = None if arrangement.norms_see_padding else batch.get("nodes_mask")
        out = model(batch.x, batch.edge_index, batch=batch.batch, num_graphs=batch.num_graphs, nodes_mask=nodes_mask)
        errors = (out.flatten() - batch.y[:, GAP]).abs()
        real = errors[batch.get("graphs_mask", slice(None))]
        counts.append(len(real))
        losses = {"real": real.mean(), "fixed": real.sum() / arrangement.graphs, "slots": errors.mean()}
        optimizer.zero_grad()
        losses[arrangement.loss].backward()
        optimizer.step()
        schedule.step()
    return model, torch.tensor(counts, dtype=torch.float)


@torch.no_grad()
def held_out_error(model: GIN, molecules: list[Data]) -> float:
    """Return the mean absolute error (eV)."""
    model.eval()
    batch = Batch.from_data_list(molecules)
    out = model(batch.x, batch.edge_index, batch=batch.batch, num_graphs=batch.num_graphs)
    return float((out.flatten() - batch.y[:, GAP]).abs().mean())


def compare(molecules: list[Data], updates: int, seeds: int) -> pd.DataFrame:
    """Return a row for each arrangement: graphs per batch, and the errors over the seeds."""
    held_out, training = molecules[: len(molecules) // 10], molecules[len(molecules) // 10 :]
    rows = []
    for arrangement in progress(ARRANGEMENTS, "training", "arrangements"):
        errors, counts = [], torch.empty(0)
        for seed in range(seeds):
            model, counts = train(arrangement, training, updates, seed)
            errors.append(held_out_error(model, held_out))
        found = torch.tensor(errors)
        rows.append(
            {
                "batches": arrangement.name,
                "graphs per batch": f"{counts.mean():.1f} ± {counts.std():.1f}",
                "held-out error (eV)": f"{found.mean():.3f} ± {found.std():.3f}",
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=5000)
    parser.add_argument("--updates", type=int, default=1000, help="updates, counted in batches of 32 molecules")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="use a few updates; takes seconds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.molecules, arguments.updates, arguments.seeds = 400, 20, 2
    one_thread()
    molecules = [Data(x=one.x, edge_index=one.edge_index, y=one.y) for one in Molecules()[: arguments.molecules]]
    table = compare(molecules, arguments.updates, arguments.seeds)
    print(f"{arguments.updates:,} updates of about 32 of {len(molecules):,} molecules, {arguments.seeds} seeds")
    print(table.to_string(index=False))


if __name__ == "__main__":
    run(main)
