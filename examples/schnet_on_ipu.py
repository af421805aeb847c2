"""The cycles of a SchNet training step on one Bow IPU, and their reduction step by step.

    python examples/schnet_on_ipu.py --out schnet-on-ipu

The script starts from the published setting (hydronet-gnn on QM9: 100 channels, 4 blocks, 25 Gaussians, batches of 576
atoms, 28 nearest neighbors each; 28,880 graphs/s measured on one Bow IPU) and follows the advice of the reports. All
further throughputs are modelled. The molecules are bundled with popgeo and as large as QM9's (18.0 atoms on average).
"""

import argparse
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from popgeo import ipu, plots
from popgeo.command_line import make_folder, run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.nn import KNNInteractionGraph, PolynomialEnvelope, PrecomputeInteractionGraph, SchNet, l1_loss

PUBLISHED = 28_880  # graphs per second, synthetic data: strong_scaling.ipynb of hydronet-gnn
CUTOFF = 10.0  # angstrom
MAX_NEIGHBORS = 28
MEAN_ATOMS = 18.0
NUM_BATCHES = 20  # number of batches for the mean fill


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A variant of the same training step.

    Attributes:
        name: Name of the variant.
        why: Insight of the previous report that leads to this variant.
        num_nodes: Atoms per batch, approximately.
        polynomial: Whether the envelope of filters is a polynomial instead of half a cosine.
        precomputed: Whether edges are in the data; otherwise each step searches them.
        half_list: Whether each pair of atoms is in the data once, with one filter for both directions.
    """

    name: str
    why: str
    num_nodes: int = 576
    polynomial: bool = False
    precomputed: bool = False
    half_list: bool = False


STORY = (
    Setting(name="published", why="k nearest neighbors and a cosine envelope in each step"),
    Setting(name="polynomial envelope", why="a float32 cosine runs in software", polynomial=True),
    Setting(
        name="packed edges",
        why="positions are data, so no step needs to search edges; and only real edges take slots",
        polynomial=True,
        precomputed=True,
    ),
    Setting(
        name="larger batches",
        why="synchronising and starting cost the same for more graphs",
        num_nodes=3 * 576,
        polynomial=True,
        precomputed=True,
    ),
    Setting(
        name="half list",
        why="a filter depends only on the distance, so a pair of atoms needs one; batches can grow again",
        num_nodes=4 * 576,
        polynomial=True,
        precomputed=True,
        half_list=True,
    ),
)


class Step(nn.Module):
    """SchNet with its loss, in the form that a training step expects."""

    def __init__(self, setting: Setting, num_graphs: int) -> None:
        super().__init__()
        self.half_list, self.num_graphs = setting.half_list, num_graphs
        self.schnet = SchNet(
            hidden_channels=100,
            num_filters=100,
            num_interactions=4,
            num_gaussians=25,
            cutoff=CUTOFF,
            interaction_graph=KNNInteractionGraph(MAX_NEIGHBORS, CUTOFF),
            envelope=PolynomialEnvelope(CUTOFF) if setting.polynomial else None,
            stable_softplus=False,
        )

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor, edge_index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the predictions [num_graphs] and the loss []."""
        prediction = self.schnet(z, pos, batch, edge_index, num_graphs=self.num_graphs, half_list=self.half_list)
        return prediction.flatten(), l1_loss(prediction.flatten(), y[:, 0], graphs_mask)


def report(setting: Setting, num_molecules: int) -> ipu.Report:
    """Return the report of one training step on batches of packed molecules, without training."""
    unused = ["x", "edge_attr", "smiles"]
    if setting.precomputed:
        find = PrecomputeInteractionGraph(CUTOFF, half_list=setting.half_list)
        dataset = [find(molecule) for molecule in Molecules()[:num_molecules]]
    else:
        dataset = list(Molecules()[:num_molecules])
        unused.append("edge_index")
    for molecule in dataset:
        for name in unused:
            del molecule[name]
    sizes = FixedSizeOptions.tune(dataset, target_graphs=setting.num_nodes / MEAN_ATOMS, verbose=False)
    if not setting.precomputed:
        sizes = FixedSizeOptions(num_nodes=setting.num_nodes, num_edges=0, num_graphs=sizes.num_graphs)
    loader = FixedSizeDataLoader(
        dataset, fixed_size_options=sizes, fixed_size_strategy=FixedSizeStrategy.Window, shuffle=True
    )
    batches = list(islice(loader, min(NUM_BATCHES, len(loader) - 1)))  # without the last batch, which is not full
    model = Step(setting, sizes.num_graphs)
    step = ipu.training_model(model, optimizer=torch.optim.Adam(model.parameters()))
    names = ["z", "pos", "batch", "y", "graphs_mask", *(["edge_index"] if setting.precomputed else [])]
    step.compile(**{name: batches[0][name] for name in names})
    mean = {key: sum(int(b[f"{key}_mask"].sum()) for b in batches) / len(batches) for key in ("nodes", "graphs")}
    real = {sizes.total_num_nodes: mean["nodes"]}
    if setting.precomputed:
        real[sizes.total_num_edges] = sum(int(b["edges_mask"].sum()) for b in batches) / len(batches)
    return step.report.for_batch(graphs=mean["graphs"], real=real)


def tell(setting: Setting, account: ipu.Report, before: ipu.Report | None) -> None:
    """Print a step's cost, the largest changes, and the report's advice."""
    rate = account.graphs_per_second or 0.0
    print(f"\n=== {setting.name}: {setting.why}")
    print(
        f"{account.total_cycles:,} cycles for {account.graphs_per_micro_batch:.1f} graphs on {account.target.name}: "
        f"{rate:,.0f} graphs/s, {rate / PUBLISHED:.2f}x the published {PUBLISHED:,}"
    )
    if before is not None:
        table = before.compare(account).to_frame("families").head(4)
        print("  changes most: " + ", ".join(f"{r.family} {r.difference:+,.0f}" for r in table.itertuples()))
    for insight in account.insights[:3]:
        print(f"  {insight}")


def _fullest(account: ipu.Report) -> float:
    """Return the used share of the fullest tile's memory."""
    assert account.memory is not None
    return int(account.memory.peak.max()) / account.memory.limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=2000, help="number of bundled molecules to pack")
    parser.add_argument("--out", type=Path, help="folder for a page of each report, and a picture")
    arguments = parser.parse_args()
    if arguments.out is not None:
        make_folder(arguments.out)
    torch.manual_seed(0)
    reports: dict[str, ipu.Report] = {}
    for setting in STORY:
        account = report(setting, arguments.molecules)
        tell(setting, account, next(reversed(reports.values()), None))
        reports[setting.name] = account
    print("\n" + str(account))
    rates = pd.Series({name: r.graphs_per_second for name, r in reports.items()}, name="graphs/s")
    ratios = {"x published": rates / PUBLISHED, "x modelled start": rates / rates.iloc[0]}
    memory = {"memory": pd.Series({name: f"{_fullest(r):.0%}" for name, r in reports.items()})}
    table = rates.to_frame().assign(**ratios, **memory)
    print("\n" + table.to_string(float_format="{:,.2f}".format))
    if arguments.out is not None:
        for name, its in reports.items():
            its.to_html(
                arguments.out / f"{name.replace(' ', '-')}.html", title=f"SchNet on QM9-sized molecules: {name}"
            )
        axes = plots.panels(1, 2, size=(13, 4.5))
        for ax, name in zip(axes, ("published", STORY[-1].name), strict=True):
            families = reports[name].to_frame("families")
            for part in ("compute", "exchange", "sync"):
                families[part] /= reports[name].graphs_per_micro_batch
            plots.cycles_by(families, ax=ax).set(title=name, xlabel="cycles per graph")
        figure = axes[0].get_figure(root=True)
        assert figure is not None
        figure.savefig(arguments.out / "families.png", dpi=120)
        print(f"pages and picture: {arguments.out}")


if __name__ == "__main__":
    run(main)
