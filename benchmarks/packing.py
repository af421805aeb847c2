"""Quality and time of packing: fill and randomness of packs, time of a plan, compared with packing Data objects.

The sizes follow the published histograms of QM9 (130,831 graphs) and HydroNet (4,464,740) in `benchmarks/data`, with
edges drawn around the mean number per node. `--quick` draws 6,000 graphs each instead. A length N counts real nodes;
each pack has one padding node and one padding graph in addition. `E+0.5%` is the slack of the edge budget over the mean
number of edges.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from real_data import PUBLISHED
from timing import measure, one_thread
from torch_geometric.data import Data

from popgeo.command_line import run
from popgeo.native import library
from popgeo.packing import (
    Budget,
    Packs,
    assign,
    decreasing,
    histogram,
    iter_window,
    optimal,
    optimal_plan,
    stream,
    summary,
    window,
)

EDGES_PER_NODE = {"QM9": 2.07, "HydroNet": 10.0}
STRATEGIES: dict[str, Callable[..., Packs]] = {
    "stream": stream,
    "decreasing": decreasing,
    "window": window,
    "optimal": optimal,
}


@dataclass(frozen=True)
class Case:
    """One budget, and the goals of named strategies: shares of used nodes and edges, in percent."""

    dataset: str
    length: int
    slack: float | None  # None: nodes only
    goals: dict[str, tuple[float, float]]


CASES = (
    Case("QM9", 36, None, {"optimal": (98.65, 0)}),
    Case("QM9", 72, None, {"window": (99.8, 0), "optimal": (99.99, 0)}),
    Case("QM9", 144, 0.02, {}),
    Case("QM9", 576, 0.005, {"window": (99.9, 99.4)}),
    Case("HydroNet", 153, None, {"optimal": (99.7, 0)}),
    Case("HydroNet", 513, 0.05, {"window": (99.9, 0)}),
    Case("HydroNet", 2049, 0.01, {}),
)


def dataset_sizes(name: str, quick: bool) -> np.ndarray:
    """Return nodes and edges of every graph, in random order, int64 [num_graphs, 2]."""
    random = np.random.default_rng(0)
    if not quick:
        with (PUBLISHED / "size_histograms.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["dataset"] == name]
        nodes = np.repeat([int(row["num_nodes"]) for row in rows], [int(row["num_graphs"]) for row in rows])
    elif name == "QM9":
        nodes = random.normal(18, 3, 6_000).round().clip(3, 29).astype(np.int64)
    else:
        nodes = 3 * random.normal(24, 5, 6_000).round().clip(3, 30).astype(np.int64)
    nodes = random.permutation(nodes)
    edges = nodes * EDGES_PER_NODE[name] * random.normal(1, 0.04, len(nodes))
    return np.stack([nodes, edges.round().astype(np.int64)], axis=1)


def budget_for(case: Case, sizes: np.ndarray) -> tuple[np.ndarray, Budget]:
    """Return the counted sizes (nodes, or nodes and edges), and the budget of a pack."""
    mean = sizes.mean(axis=0)
    num_graphs = int(2 * case.length / mean[0]) + 2
    if case.slack is None:
        return sizes[:, :1], Budget(sizes=(case.length,), num_graphs=num_graphs)
    edges = int(case.length * mean[1] / mean[0] * (1 + case.slack))
    return sizes, Budget(sizes=(case.length, edges), num_graphs=num_graphs)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def quality(cases: tuple[Case, ...], sizes: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return the fill and the randomness of every strategy's packs."""
    tables = []
    for case in cases:
        table, budget = budget_for(case, sizes[case.dataset])
        plans = {name: strategy(table, budget, generator=seeded()) for name, strategy in STRATEGIES.items()}
        found = summary(plans, table, budget)
        found.insert(0, "dataset", f"{case.dataset} N={case.length}" + (f" E+{case.slack:.1%}" if case.slack else ""))
        found["lower_bound"] = max(found["lower_bound"].max(), optimal_plan(histogram(table, budget)).bound)
        goals = [case.goals.get(name) for name in found["strategy"]]
        found["goal"] = ["" if goal is None else " / ".join(f"{share:g}" for share in goal if share) for goal in goals]
        tables.append(found)
    table = pd.concat(tables)
    for share in ("nodes", "edges"):
        table[share] = (100 * table[share]).round(3)
    table["gap"] = table["num_packs"] - table["lower_bound"]
    columns = ["dataset", "strategy", "num_packs", "gap", "nodes", "edges", "goal", "graphs_per_pack", "variance_ratio"]
    return table[columns].round({"graphs_per_pack": 1, "variance_ratio": 2})


def times(case: Case, sizes: np.ndarray, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield the seconds of every plan, of a plan after the first, and until the first packs."""
    table, budget = budget_for(case, sizes)

    def plan_anew() -> Packs:
        optimal_plan.cache_clear()
        return optimal(table, budget, generator=seeded())

    plan = optimal_plan(histogram(table, budget))
    variants: dict[str, Callable[[], object]] = {
        "stream": lambda: stream(table, budget),
        "window": lambda: window(table, budget, generator=seeded()),
        "window, first packs": lambda: next(iter_window(table, budget, generator=seeded())),
        "optimal": plan_anew,
        "optimal, next epoch": lambda: assign(plan, table, budget, generator=seeded()),
    }
    yield from measure(variants, rounds=rounds, min_seconds=0).items()


def next_fit_over_data(dataset: list[Data], budget: Budget) -> list[list[int]]:
    """Pack by next fit, as a batch sampler that reads the size of each Data object. The peer."""
    order = torch.randperm(len(dataset)).tolist()
    packs: list[list[int]] = [[]]
    nodes = edges = 0
    for i in order:
        num_nodes, num_edges = int(dataset[i].num_nodes or 0), dataset[i].num_edges
        full = nodes + num_nodes > budget.sizes[0] or edges + num_edges > budget.sizes[1]
        if full or len(packs[-1]) == budget.num_graphs:
            packs.append([])
            nodes = edges = 0
        packs[-1].append(i)
        nodes, edges = nodes + num_nodes, edges + num_edges
    return packs


def against_data_objects(sizes: np.ndarray, rounds: int) -> dict[str, float]:
    """Return seconds per graph of `window`, with and without the compiled library, and of the peer."""
    table, budget = budget_for(Case("QM9", 576, 0.005, {}), sizes)
    part = table[:20_000]  # times are proportional to the number, and objects take memory
    dataset = [Data(x=torch.empty(n, 1), edge_index=torch.empty(2, e, dtype=torch.long)) for n, e in part.tolist()]

    def interpreted() -> Packs:
        with library.without_native():
            return window(part, budget, generator=seeded())

    variants: dict[str, Callable[[], object]] = {
        "window": lambda: window(table, budget, generator=seeded()),
        "window, 20,000 graphs": lambda: window(part, budget, generator=seeded()),
        "window without the library, 20,000 graphs": interpreted,
        "next fit over Data objects": lambda: next_fit_over_data(dataset, budget),
    }
    seconds = measure(variants, rounds=rounds, min_seconds=0)
    counts = (len(table), len(part), len(part), len(dataset))
    return {name: each / count for (name, each), count in zip(seconds.items(), counts, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="use small random datasets; takes seconds")
    arguments = parser.parse_args()
    one_thread()
    start = time.perf_counter()
    if arguments.quick:
        print("RANDOM DATA: 6,000 random sizes for each dataset, because of --quick.")
    sizes = {name: dataset_sizes(name, arguments.quick) for name in EDGES_PER_NODE}
    print(f"popgeo packing: {', '.join(f'{name} {len(table):,} graphs' for name, table in sizes.items())}; one thread")
    print("compiled library in use" if library.is_available() else f"no compiled library: {library.reason()}")

    print(
        "\nFill (percent of the budget), gap to the proven bound (packs), variance of batch means over i.i.d. (0.8-1.2"
    )
    print("is the goal for window at 8 graphs per batch and more)")
    with pd.option_context("display.width", 160, "display.max_columns", 20):
        print(quality(CASES, sizes).to_string(index=False))

    print("\nTime of a plan on one core (processor time)")
    goals = {
        ("QM9", "window"): 0.03,
        ("QM9", "optimal"): 0.3,
        ("HydroNet", "window"): 1.5,
        ("HydroNet", "optimal"): 1.5,
    }
    for case in (CASES[3], CASES[1], CASES[5], CASES[4]):
        rounds = 1 if arguments.quick else 7 if len(sizes[case.dataset]) < 1_000_000 else 3
        for name, seconds in times(case, sizes[case.dataset], rounds):
            goal = goals.get((case.dataset, name))
            print(
                f"{case.dataset:8} N={case.length:<4} {name:20} {seconds * 1e3:9.1f} ms"
                + (f"   goal {goal * 1e3:g}" if goal else "")
            )

    print("\nAgainst next fit over PyG Data objects, QM9 N=576 E+0.5%, per graph")
    per_graph = against_data_objects(sizes["QM9"], rounds=1 if arguments.quick else 5)
    for name, seconds in per_graph.items():
        print(f"{name:42} {seconds * 1e9:8.0f} ns")
    peer, compiled, part, interpreted = (
        per_graph["next fit over Data objects"],
        per_graph["window"],
        per_graph["window, 20,000 graphs"],
        per_graph["window without the library, 20,000 graphs"],
    )
    print(f"window plans {peer / compiled:.0f} times as fast as the peer (goal 100), ", end="")
    print(f"without the library it takes {interpreted / part:.0f} times as long (goal 30)")
    print(f"done in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    run(main)
