"""Cost of a training step of every model: time on this computer, and modelled cycles of one Bow IPU.

    python benchmarks/every_model.py
    python benchmarks/every_model.py --only GPS

All models have `--layers` layers of `--channels` channels and train on the same batches of about `--graphs` molecules
from the bundled set, hydrogens included. A compiled step contains forward, backward and Adam. Times are medians of one
thread's processor time, with the models measured in turn. docs/guides/which_model_for_what.md shows the Markdown table.
"""

import argparse
from collections.abc import Callable, Mapping

import torch
from timing import measure, one_thread
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from popgeo import ipu
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import (
    GCN,
    GIN,
    GINE,
    GPS,
    GPSPlusPlus,
    GraphSAGE,
    Multitask,
    PaiNN,
    PairBias,
    PairDistances,
    PrecomputeInteractionGraph,
    SchNet,
    ShortestPaths,
    Task,
    binary_cross_entropy,
    mse_loss,
)

MAX_ATOMS, MAX_HOPS, CUTOFF = 29, 8, 5.0
GAP = Molecules.target_index("gap")
TASKS = (Task(name="gap", num_labels=1), Task(name="others", num_labels=12, loss=binary_cross_entropy))


class Step(nn.Module):
    """A model with its loss; `predict` calls the model on a batch."""

    def __init__(self, model: nn.Module, predict: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self.predict = model, predict

    def forward(self, batch: Batch) -> Tensor:
        out = self.predict(self.model, batch)
        return mse_loss(out, batch.y[:, GAP : GAP + 1].expand_as(out), batch.graphs_mask)


def of_bonds(model: nn.Module, b: Batch, **more: Tensor) -> Tensor:
    """Call a model that reads bonds; return a row per graph."""
    return model(
        b.x,
        b.edge_index,
        batch=b.batch,
        num_graphs=b.num_graphs,
        nodes_mask=b.nodes_mask,
        edges_mask=b.edges_mask,
        **more,
    )


def of_features(model: nn.Module, b: Batch) -> Tensor:
    """Call a model that also reads the features of bonds."""
    return of_bonds(model, b, edge_attr=b.edge_attr)


def of_pairs(model: nn.Module, b: Batch) -> Tensor:
    """Call a model that also reads hops and distances of atom pairs."""
    return of_bonds(model, b, edge_attr=b.edge_attr, hops=b.hops, distance=b.distance)


def of_tasks(model: nn.Module, b: Batch) -> Tensor:
    """Call a multitask model; return its tasks' outputs joined by column."""
    out = model(
        b.x,
        b.edge_index,
        edge_attr=b.edge_attr,
        batch=b.batch,
        num_graphs=b.num_graphs,
        nodes_mask=b.nodes_mask,
        edges_mask=b.edges_mask,
    )
    return torch.cat([*out.values()], 1)


def of_positions(model: nn.Module, b: Batch) -> Tensor:
    """Call a model of atoms in space; its batches hold pairs within the cutoff instead of bonds."""
    return model(b.z, b.pos, b.batch, b.edge_index, num_graphs=b.num_graphs, half_list=True)


def models(channels: int, layers: int) -> dict[str, Step]:
    """Return every model in one size."""
    size, wide = (11, channels, layers, 1), (11, channels, layers)
    bias = PairBias(4, MAX_HOPS, cutoff=8.0, num_gaussians=16)
    trunk = GINE(*wide, edge_dim=4, norm="batch_norm", jk="cat")
    return {
        "SchNet": Step(SchNet(channels, channels, num_interactions=layers, cutoff=CUTOFF), of_positions),
        "PaiNN": Step(PaiNN(channels, layers, cutoff=CUTOFF), of_positions),
        "GCN": Step(GCN(*size, norm="batch_norm", readout="mean"), of_bonds),
        "GIN": Step(GIN(*size, norm="batch_norm", readout="mean"), of_bonds),
        "GINE": Step(GINE(*size, edge_dim=4, norm="batch_norm", readout="mean"), of_features),
        "GraphSAGE": Step(GraphSAGE(*size, norm="batch_norm", readout="mean"), of_bonds),
        "Multitask GINE": Step(Multitask(trunk, channels, TASKS), of_tasks),
        "GPS": Step(GPS(*size, edge_dim=4, heads=4, readout="mean", max_num_nodes=MAX_ATOMS), of_features),
        "GPS++": Step(GPSPlusPlus(*size, edge_dim=4, heads=4, pair_bias=bias, max_num_nodes=MAX_ATOMS), of_pairs),
    }


def batches(num_graphs: int) -> Mapping[str, Batch]:
    """Return two batches of the same molecules: with bonds and pair features, and with atom pairs."""
    molecules = list(Molecules()[:600])
    hops, distances = ShortestPaths(MAX_ATOMS, MAX_HOPS), PairDistances(MAX_ATOMS)
    near = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    found = {}
    for name, dataset in (
        ("bonds", [distances(hops(molecule)) for molecule in molecules]),
        ("near", [near(Data(z=m.z, pos=m.pos, y=m.y)) for m in molecules]),
    ):
        sizes = FixedSizeOptions.tune(dataset, target_graphs=num_graphs, verbose=False)
        loader = FixedSizeDataLoader(dataset, fixed_size_options=sizes, fixed_size_strategy="StreamPack")
        found[name] = next(iter(loader))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--graphs", type=int, default=32, help="mean number of molecules per batch")
    parser.add_argument("--only", nargs="+", help="names of the models to measure")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    held = batches(arguments.graphs)
    chosen = models(arguments.channels, arguments.layers)
    names = arguments.only or list(chosen)
    if unknown := sorted({*names} - {*chosen}):
        parser.error(f"no model is named {', '.join(unknown)}; choose from {', '.join(chosen)}")
    calls, steps = {}, {}
    one_thread()
    for name in names:
        batch = held["near" if name in ("SchNet", "PaiNN") else "bonds"]
        model = chosen[name]
        step = ipu.training_model(
            model,
            ipu.Options(strict=False, show_progress=False, num_threads=1),
            torch.optim.Adam(model.parameters()),
        )
        step(batch)
        steps[name] = step, int(batch.graphs_mask.sum()), sum(p.numel() for p in model.parameters())
        calls[name] = lambda step=step, batch=batch: step(batch)
    seconds = measure(calls, rounds=arguments.rounds)
    print("| model | weights | ms per step | graphs/s | modelled cycles | graphs/s, modelled |")
    print("|---|---|---|---|---|---|")
    for name, (step, graphs, weights) in steps.items():
        cycles = step.report.total_cycles
        print(
            f"| {name} | {weights:,} | {1e3 * seconds[name]:.1f} | {graphs / seconds[name]:,.0f} | {cycles:,.0f} | "
            f"{graphs / cycles * ipu.IpuTarget.bow().clock:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
