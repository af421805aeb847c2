"""Errors of the modelled cycles against cycles measured on a Bow IPU, on points that no constant was fitted to.

Real functions are compiled with `popgeo.ipu.compile` for the published shapes; `benchmarks/data` holds the points and
their sources. No constant was fitted to these points, but all of them were known when the terms of the formulas were
chosen.

    python benchmarks/cost_model_validation.py --systems  # also whole systems of up to 64 IPUs: three minutes more
"""

import argparse
import functools
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import published
import published_systems
import torch
import whole_systems
from published import Point
from scipy.stats import spearmanr

from popgeo.command_line import run
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Profile

# Largest allowed median error, and lowest allowed rank correlation.
GATES = {"gather": 0.07, "scatter_add": 0.05, "matmul": 0.08, "schnet_block": 0.06}
RANK_GATE = 0.97


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=published.FOLDER, help="folder with the published points")
    parser.add_argument("--quick", action="store_true", help="use fewer points of the long sweeps")
    parser.add_argument("--systems", action="store_true", help="also SchNet, GPS++, GPT-2, BERT, ResNet")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        parser.error(f"--folder is {arguments.folder}, which does not exist; benchmarks/data holds the points.")
    torch.set_num_threads(1)
    print(
        f"{'family':<14}{'points':>7}{'error':>8}{'goal':>6}{'rank':>7}{'ideal':>8}  10 % to 90 % of modelled/measured"
    )
    for family in published.FAMILIES:
        others = published.split(family, published.points(arguments.folder, family))[1]
        others = others[::6] if arguments.quick and len(others) > 60 else others
        start = time.perf_counter()
        calibrated, ideal = (modelled(others, profile) for profile in (Profile.CALIBRATED, Profile.IDEAL))
        error, rank, low, high = judge(others, calibrated)
        met = error <= GATES[family] and rank >= RANK_GATE
        print(
            f"{family:<14}{len(others):>7}{error:>8.1%}{GATES[family]:>6.0%}{rank:>7.3f}"
            f"{judge(others, ideal)[0]:>8.1%}  {low:.2f} to {high:.2f}: {'met' if met else 'MISSED'}"
            f"  ({time.perf_counter() - start:.1f} s)"
        )
    if arguments.systems:
        whole_systems.tell(arguments.folder)
        published_systems.tell(arguments.folder)


def modelled(points: Sequence[Point], profile: Profile = Profile.CALIBRATED) -> np.ndarray:
    """Return the modelled cycles of each point's compiled function, float64 [points]."""
    return np.array([_cycles(point, profile) for point in points])


def judge(points: Sequence[Point], cycles: np.ndarray) -> tuple[float, float, float, float]:
    """Return median relative error, rank correlation, and the 10th and 90th percentiles of modelled over measured."""
    measured = np.array([point.cycles for point in points])
    ratio = cycles / measured
    low, high = np.quantile(ratio, (0.1, 0.9))
    return float(np.median(np.abs(ratio - 1))), float(spearmanr(cycles, measured).statistic), float(low), float(high)


def residuals(points: Sequence[Point], cycles: np.ndarray) -> tuple[float, float]:
    """Return the 10th and 90th percentiles of measured over modelled cycles, for an error budget."""
    low, high = np.quantile(np.array([point.cycles for point in points]) / cycles, (0.1, 0.9))
    return float(low), float(high)


@functools.cache  # tests and the picture of residuals ask for the same points
def _cycles(point: Point, profile: Profile) -> float:
    target = published.TARGET
    graph = published.compile_point(point, target).graph
    return sum(op.plan.cycles(profile) for op in cost(graph, target))


if __name__ == "__main__":
    run(main)
