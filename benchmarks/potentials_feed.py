"""Batches of structures for other frameworks' potentials: host time and slack next to jraph, shapes in a screening.

    python benchmarks/potentials_feed.py --structures 2000                 # with jraph.dynamically_batch, if installed
    python benchmarks/potentials_feed.py --screening 1000                  # needs torch_sim

The structures are crystals and clusters of 2 to 60 atoms, with random positions near a lattice and pairs up to 4
angstrom. The first part makes each epoch of batches for nequix from structures in memory: with popgeo, and with
`jraph.dynamically_batch` as in nequix. The second part screens many small systems with one model of fixed shape, and
counts the shapes seen by a compiler, next to the number of different shapes among the systems.
"""

import argparse
import time
import warnings
from statistics import median
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from popgeo.command_line import run
from popgeo.convert.periodic_pairs import list_pairs
from popgeo.potentials import nequix

CUTOFF, NUMBERS = 4.0, (13, 29)


def structure(number: int, most_atoms: int = 60) -> Data:
    """Return 2 to `most_atoms` displaced atoms on a lattice; every third structure is a cluster in a wide cell."""
    random = np.random.default_rng(number)
    num_atoms = int(random.integers(2, most_atoms + 1))
    side = int(np.ceil(num_atoms ** (1 / 3)))
    places = np.argwhere(np.ones((side,) * 3))[:num_atoms] * 2.6
    pos = places + random.normal(scale=0.1, size=places.shape)
    cell = np.eye(3) * (2.6 * side + (20 if number % 3 == 0 else 0))
    edge_index, shift = list_pairs(pos, cell, np.ones(3, bool), CUTOFF)
    return Data(
        z=torch.from_numpy(random.choice(NUMBERS, num_atoms)),
        pos=torch.tensor(pos, dtype=torch.float32),
        cell=torch.tensor(cell, dtype=torch.float32)[None],
        pbc=torch.ones(1, 3, dtype=torch.bool),
        edge_index=edge_index,
        edge_shift=shift.float(),
        energy=torch.tensor([random.normal()], dtype=torch.float32),
        forces=torch.tensor(random.normal(size=pos.shape), dtype=torch.float32),
        stress=torch.zeros(1, 6),
    )


def seconds(epoch: Any) -> tuple[float, list[float]]:
    """Return the processor time (s) of one epoch, and the fill of each batch's edges."""
    start = time.process_time()
    full = list(epoch())
    return time.process_time() - start, full


def against_jraph(structures: list[Data], batch_size: int, repeats: int) -> None:
    nodes = sum(len(one.z) for one in structures)
    edges = sum(one.num_edges for one in structures)
    num_nodes = int(nodes / len(structures) * batch_size * 1.1) + 1  # the rule of nequix for the size of its batches
    num_edges = int(edges / len(structures) * batch_size * 1.1)
    loader = nequix.fixed_size_loader(
        structures, NUMBERS, num_nodes=num_nodes, num_edges=num_edges, batch_size=2 * batch_size, shuffle=True
    )

    def ours() -> Any:
        for graphs in loader:
            padding = int(np.flatnonzero(graphs.globals["cell"].any(axis=(1, 2)))[-1]) + 1
            yield graphs.n_edge[:padding].sum() / num_edges

    variants = {"popgeo": ours}
    try:
        import jraph
    except ImportError:
        print("jraph is not installed; only popgeo is measured")
    else:
        table = torch.tensor(NUMBERS)
        made = [nequix.as_graph(one, table) for one in structures]
        items = [
            jraph.GraphsTuple(
                nodes={name: one[name].numpy() for name in ("species", "positions", "forces")},
                edges={"shifts": one.shifts.numpy()},
                senders=one.edge_index[0].int().numpy(),
                receivers=one.edge_index[1].int().numpy(),
                globals={name: one[name].numpy() for name in ("cell", "energy", "stress")},
                n_node=np.array([one.num_nodes], np.int32),
                n_edge=np.array([one.num_edges], np.int32),
            )
            for one in made
        ]

        def theirs() -> Any:
            order = np.random.default_rng(0).permutation(len(items))
            for graphs in jraph.dynamically_batch((items[i] for i in order), num_nodes, num_edges, batch_size + 1):
                real = int(np.flatnonzero(graphs.globals["cell"].any(axis=(1, 2)))[-1]) + 1
                yield graphs.n_edge[:real].sum() / num_edges

        variants["jraph.dynamically_batch"] = theirs
    found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, epoch in variants.items():
            found[name].append(seconds(epoch))
    for name, epochs in found.items():
        full = epochs[0][1]
        took = median(one for one, _ in epochs)
        print(f"{name}: {took:.3f} s per epoch, {len(full)} batches, edges {1 - np.mean(full[:-1]):.1%} slack")
    if len(found) > 1:
        ours_took, theirs_took = (median(one for one, _ in epochs) for epochs in found.values())
        print(f"host time: {theirs_took / ours_took:.1f} times popgeo's")


def screening(count: int) -> None:
    try:
        import ase
        import torch_sim

        from popgeo.potentials.evaluator import Evaluator
        from popgeo.potentials.torch_sim import FixedSizeModel
    except ImportError as error:
        print(f"{error.name or error} is not installed; no screening")
        return

    def evaluate(batch: Any) -> dict[str, torch.Tensor]:
        source, destination = batch.edge_index
        length = (batch.pos[source] + batch.edge_shift - batch.pos[destination]).norm(dim=1)
        pair = (1 - length / CUTOFF).clamp(min=0) ** 3
        each = torch.zeros_like(batch.pos[:, 0]).index_add(0, destination, pair)
        energy = torch.zeros_like(batch.cell[:, 0, 0]).index_add(0, batch.batch, each)
        return {"energy": energy, "forces": torch.zeros_like(batch.pos), "stress": torch.zeros_like(batch.cell)}

    def as_graph(graph: Data) -> Data:
        return Data(**graph.to_dict(), unit_shift=(graph.edge_shift @ torch.linalg.pinv(graph.cell[0])).round())

    evaluator = Evaluator(
        evaluate, as_graph=as_graph, as_batch=lambda batch: batch, cutoff=CUTOFF, species=13, num_nodes=256,
        num_edges=4000, num_graphs=24, skin=0.0,
    )  # fmt: skip
    model = FixedSizeModel(evaluator)
    atoms = [
        ase.Atoms(one.z.numpy(), positions=one.pos.numpy(), cell=one.cell[0].numpy(), pbc=True)
        for one in (structure(number, 24) for number in range(count))
    ]
    shapes, start = set(), time.process_time()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for first in range(0, count, 100):
            state = torch_sim.io.atoms_to_state(atoms[first : first + 100], torch.device("cpu"), torch.float64)
            shapes.add(len(state.positions))
            model(state)
    took = time.process_time() - start
    print(f"{count} structures: {evaluator.describe()}; {len(shapes)} shapes without popgeo; {took:.1f} s in total")
    print(f"warnings of growth: {sum('more than a batch' in str(one.message) for one in told)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--screening", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.structures:
        structures = [structure(number) for number in range(arguments.structures)]
        against_jraph(structures, arguments.batch_size, arguments.repeats)
    if arguments.screening:
        screening(arguments.screening)
    return 0


if __name__ == "__main__":
    run(main)
