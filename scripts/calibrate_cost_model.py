"""Fit the constants of `popgeo.ipu.cost.calibration.Calibration` to published measurements of a Bow IPU.

Each family's constants are fitted to a few of its points, drawn by a seed. They minimise the sum of relative errors,
and no constant is negative. The printed errors are the errors on all other points. Families are fitted in turn, each
with the earlier constants fixed, because the last family, a SchNet block, consists of all the others.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import nnls
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import published

from popgeo.capture.op_graph import OpGraph
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import CONSTANTS, Calibration
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Profile

PREFIXES = {"gather": "gather_", "scatter_add": "scatter_", "matmul": "matmul_", "schnet_block": "elementwise_"}
ROUNDS, FLOOR = 30, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seed", type=int, default=published.SEED, help="seed for drawing the points (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, default=published.FOLDER, help="folder of the published points")
    arguments = parser.parse_args()
    found = Calibration()
    for family in PREFIXES:
        found, errors = calibrate(arguments.folder, family, arguments.seed, found)
        print(f"{family}: {errors}")
    print("\n".join(f"    {name}: float = {getattr(found, name)!r}" for name in CONSTANTS))


def calibrate(folder: Path, family: str, seed: int, known: Calibration) -> tuple[Calibration, str]:
    """Return the calibration with one family fitted to a draw of points, and the errors elsewhere in words."""
    fitted, others = published.split(family, published.points(folder, family), seed)
    names = [name for name in CONSTANTS if name.startswith(PREFIXES[family])]
    values = fit(*linear_terms(fitted, names, known))
    found = dataclasses.replace(known, **{n: float(f"{v:.4g}") for n, v in zip(names, values, strict=True)})
    modelled = np.array([cycles(graph, found) for graph in graphs(others)])
    truth = np.array([point.cycles for point in others])
    error, rank = np.median(np.abs(modelled / truth - 1)), spearmanr(modelled, truth).statistic
    return found, (
        f"fitted to {len(fitted)}, on {len(others)} others median error {error:.1%}, rank correlation {rank:.3f}"
    )


def fit(features: np.ndarray, rest: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Return factors >= 0 of the features with the smallest sum of relative errors, by reweighted least squares.

    Args:
        features: Cycles that each factor multiplies. [points, constants]
        rest: Cycles that depend on no factor. [points]
        measured: Published cycles. [points]

    Example:
        >>> fit(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]]), np.zeros(3), np.array([5.0, 7.0, 11.0])).round(6)
        array([3., 2.])
    """
    weights = 1 / measured
    values = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        values, _ = nnls(features * weights[:, None], (measured - rest) * weights)
        errors = np.abs((features @ values + rest) / measured - 1)
        weights = 1 / (measured * np.sqrt(np.maximum(errors, FLOOR)))
    return values


def linear_terms(
    chosen: Sequence[published.Point], names: Sequence[str], known: Calibration
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each constant's coefficient in each point's cycles, the remaining cycles, and the measurements."""
    captured = graphs(chosen)
    without = dataclasses.replace(known, **dict.fromkeys(names, 0.0))
    rest = np.array([cycles(graph, without) for graph in captured])
    columns = [
        np.array([cycles(graph, dataclasses.replace(without, **{name: 1.0})) for graph in captured]) - rest
        for name in names
    ]
    return np.stack(columns, axis=1), rest, np.array([point.cycles for point in chosen])


def graphs(chosen: Sequence[published.Point]) -> list[OpGraph]:
    return [published.compile_point(point).graph for point in chosen]


def cycles(graph: OpGraph, calibration: Calibration) -> float:
    return sum(op.plan.cycles(Profile.CALIBRATED) for op in cost(graph, IpuTarget.bow(), calibration))


if __name__ == "__main__":
    main()
