"""GPS++ over many IPUs: trained in stages with the same bits as on one IPU, and planned for a Bow Pod16.

    python examples/pipeline_gps.py --data pcqm/pcqm4mv2_2k.csv.gz --page gps-pod16.html

The script reads the molecules of `gps_plus_plus_pcqm.py`, packs them as in GPS++'s report (arXiv:2212.02229), and
trains a small GPS++ twice for a few steps: as a whole, and with `Options(stages=4)`, micro-batch by micro-batch through
four stages. It prints the largest differences between losses and between weights, which are 0. Then it plans the
report's model, 16 layers of 256 channels in micro-batches of eight packs, on 16 Bow IPUs: the IPU of each layer, the
waiting times, and possible speed-ups; `--page` writes the plan with its timeline. In float16, as published, expect
36,000 graphs/s and an IPU with too little memory, or with `--recompute` 27,000 and 62 % of the fullest tile. Published
are 17,800 graphs/s; no constant was fitted to it. The script needs `pip install rdkit`.
"""

import argparse
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from gps_plus_plus_pcqm import GIVEN, MASKS, PACK, Gap, call, load
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo import ipu
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.loader import FixedSizeDataLoader

PACKS = 8  # packs per micro-batch in the report
PUBLISHED = 17_800  # graphs per second on a Bow Pod16


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a few training steps.

    Attributes:
        step: Compiled step.
        losses: Mean absolute error of each micro-batch in eV. [steps, micro_batches]
        weights: All parameters, concatenated.
    """

    step: ipu.CompiledStep
    losses: Tensor
    weights: Tensor


class Positional(nn.Module):
    """The model with positional arguments, for a plan."""

    def __init__(self, gap: Gap) -> None:
        super().__init__()
        self.gap = gap

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.gap(**dict(zip((*GIVEN, *MASKS), given, strict=True)))


def train(molecules: list[Data], given: argparse.Namespace, stages: int | None) -> Trained:
    """Train a few steps from the same weights on the same batches, with the same dropout."""
    torch.manual_seed(0)
    gaps = torch.cat([molecule.y for molecule in molecules])
    model = Gap(given.channels, given.layers, float(gaps.mean()), float(gaps.std())).train()
    options = ipu.Options(
        stages=stages,
        replication_factor=given.replicas,
        gradient_accumulation=given.accumulate,
        output_mode="all",
        random_seed=0,
        strict=False,
    )
    loader = FixedSizeDataLoader(
        molecules, fixed_size_options=PACK, fixed_size_strategy="Window", options=options, drop_last=False
    )
    step = ipu.training_model(model, options, torch.optim.Adam(model.parameters(), lr=1e-3))
    losses = [call(step, batch)[1] for batch in islice(loader, given.steps)]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return Trained(step=step, losses=torch.stack(losses), weights=weights)


def plan(molecules: list[Data], given: argparse.Namespace) -> tuple[ipu.Pipeline, float]:
    """Return the plan of the report's model over many IPUs, and the number of graphs per micro-batch."""
    sizes = FixedSizeOptions(num_nodes=PACKS * 60 + 1, num_edges=PACKS * 120, num_graphs=PACKS * 8 + 1)
    loader = FixedSizeDataLoader(molecules, fixed_size_options=sizes, fixed_size_strategy="Window")
    batch = next(iter(loader))
    dtype = torch.float32 if given.float32 else torch.float16
    model = Positional(Gap(given.plan_channels, given.plan_layers, 0.0, 1.0)).train().to(dtype)
    inputs = [batch[name] for name in (*GIVEN, *MASKS)]
    options = ipu.Options(replication_factor=given.replicas, gradient_accumulation=given.plan_accumulate)
    made = ipu.pipeline(
        model,
        [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs],
        options,
        torch.optim.Adam(model.parameters()),
        stages=given.stages,
        recompute=given.recompute,
    )
    return made, float(batch.graphs_mask.sum())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/pcqm/pcqm4mv2_2k.csv.gz"), help="table of molecules")
    parser.add_argument("--molecules", type=int, default=400, help="number of molecules to use")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--channels", type=int, default=32, help="channels of the trained model")
    parser.add_argument("--layers", type=int, default=4, help="layers of the trained model")
    parser.add_argument("--accumulate", type=int, default=8, help="packs per pipeline and update")
    parser.add_argument("--steps", type=int, default=4, help="training steps")
    parser.add_argument("--plan-channels", type=int, default=256)
    parser.add_argument("--plan-layers", type=int, default=16)
    parser.add_argument("--plan-accumulate", type=int, default=8, help="micro-batches of eight packs between updates")
    parser.add_argument("--recompute", action="store_true", help="plan with recomputed forward passes")
    parser.add_argument("--float32", action="store_true", help="plan in float32, instead of float16 as published")
    parser.add_argument("--page", type=Path, help="file for the page of the plan")
    return parser.parse_args()


def main() -> None:
    given = parse()
    molecules = load(given.data, given.molecules)
    whole, staged = (train(molecules, given, stages) for stages in (None, given.stages))
    cut = ", ".join(stage.layers for stage in staged.step.pipeline.stages)
    print(f"{given.stages} stages x {given.replicas} replicas here: {cut}")
    print(f"loss {staged.losses[0].mean():.3f} eV in the first step, {staged.losses[-1].mean():.3f} eV in the last")
    losses = (whole.losses - staged.losses).abs().max()
    weights = (whole.weights - staged.weights).abs().max()
    print(f"largest difference to one IPU: losses {losses:.1e} eV, weights {weights:.1e}")
    made, graphs = plan(molecules, given)
    print(made)
    print(
        f"{graphs * made.micro_batches_per_second:,.0f} graphs/s modelled on {made.num_ipus * made.replicas} IPUs in "
        f"{'float32' if given.float32 else 'float16'}; published for a Bow Pod16 in float16: {PUBLISHED:,}"
    )
    if given.page is not None:
        made.to_html(given.page, title=f"GPS++ on {made.num_ipus * made.replicas} Bow IPUs")
        print(f"page: {given.page}")


if __name__ == "__main__":
    run(main)
