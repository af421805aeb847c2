"""The batch sampler keeps and fills budgets, repeats epochs of a seed, and gives ranks equal work."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.loader import DataLoader as PyGDataLoader

import popgeo
from popgeo import FixedSizeBatchSampler, FixedSizeCollater, FixedSizeOptions
from tests.support.graphs import graph

OPTIONS = FixedSizeOptions(num_nodes=401, num_edges=24_000, num_graphs=100)


def structures(number: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of atoms and edges as in datasets of crystals: few atoms or many, with few neighbors or many."""
    rng = np.random.default_rng(seed)
    atoms = np.clip(rng.lognormal(3.0, 0.7, number).astype(int), 1, 200)
    return atoms, np.minimum(atoms * np.clip(rng.normal(60, 15, number), 5, 100), 20_000).astype(int)


ATOMS, EDGES = structures()


def sampler_of(atoms=ATOMS, edges=EDGES, options=OPTIONS, **kwargs) -> FixedSizeBatchSampler:
    return FixedSizeBatchSampler(atoms, edges, fixed_size_options=options, **{"seed": 0, **kwargs})


def test_every_graph_comes_once_within_both_budgets_and_batches_are_full():
    sampler = sampler_of()
    number = len(sampler)
    batches = list(sampler)
    assert len(batches) == number
    assert sorted(i for batch in batches for i in batch) == list(range(2000))
    assert all(ATOMS[batch].sum() <= 400 and EDGES[batch].sum() <= 24_000 and len(batch) <= 99 for batch in batches)
    assert ATOMS.sum() / (400 * number) > 0.98
    assert len({tuple(batch) for batch in [*batches, *sampler]}) == number + len(sampler_of().plan(1).packs)


def test_an_epoch_comes_again_by_its_seed_and_number_and_without_shuffle_always():
    first, again = sampler_of(seed=3), sampler_of(seed=3)
    epochs = [list(first), list(first)]
    again.set_epoch(1)
    assert list(again) == epochs[1] != epochs[0]
    still = sampler_of(shuffle=False)
    assert list(still) == list(still)
    assert [i for batch in sampler_of(fixed_size_strategy="StreamPack", shuffle=False) for i in batch] == list(
        range(2000)
    )


@pytest.mark.parametrize("kind", [torch.tensor, list, np.int16, iter, "pieces", "mapped"])
def test_sizes_are_taken_as_people_have_them(kind, tmp_path):
    def given(sizes):
        if kind == "pieces":
            return (piece for piece in np.array_split(sizes, 7))
        if kind == "mapped":
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
            np.save(path, sizes.astype(np.uint16))
            return np.load(path, mmap_mode="r")
        return sizes.astype(kind) if kind is np.int16 else kind(sizes)

    assert list(sampler_of(given(ATOMS), given(EDGES))) == list(sampler_of())


def test_a_dataset_is_measured():
    graphs = [graph(2 + seed % 5, 3 * (seed % 4), seed) for seed in range(40)]
    options = FixedSizeOptions(num_nodes=25, num_edges=40, num_graphs=6)
    sampler = FixedSizeBatchSampler(graphs, fixed_size_options=options, seed=0)
    sizes = [[g.num_nodes for g in graphs], [g.num_edges for g in graphs]]
    assert list(sampler) == list(FixedSizeBatchSampler(*sizes, fixed_size_options=options, seed=0))
    assert list(sampler_of(options=options, atoms=graphs, edges=None)) == list(
        FixedSizeBatchSampler(dataset=graphs, fixed_size_options=options, seed=0)
    )


class Structures(torch.utils.data.Dataset):
    """A dataset like fairchem's: it states numbers of atoms without reading a structure."""

    def __len__(self):
        return len(ATOMS)

    def get_metadata(self, name, ids):
        assert name == "natoms"
        return ATOMS[ids]


def test_a_dataset_that_tells_its_atoms_is_not_read_and_edges_may_be_given_beside():
    given = {"dataset": Structures(), "num_replicas": 1, "rank": 0}
    assert list(sampler_of(None, None, **given)) == list(sampler_of(ATOMS, None))
    assert list(sampler_of(None, EDGES, **given)) == list(sampler_of())
    resumed = sampler_of(None, EDGES, **given)
    resumed.set_epoch_and_start_iteration(2, 5)
    assert len(list(resumed)) == len(sampler_of().plan(2).packs) - 5


def test_fairchem_goes_on_at_the_batch_that_it_names():
    whole, resumed = sampler_of(), sampler_of()
    whole.set_epoch(2)
    resumed.set_epoch_and_start_iteration(2, 5)
    assert list(resumed) == list(whole)[5:]
    assert list(resumed) == list(whole)  # and epoch 3 after it


def test_further_budgets_are_held():
    triplets = ATOMS * 3 + np.arange(2000) % 7
    sampler = sampler_of(budgets={"triplets": (triplets, 1100)})
    assert all(triplets[batch].sum() <= 1100 and ATOMS[batch].sum() <= 400 for batch in sampler)
    alone = FixedSizeBatchSampler(budgets={"triplets": (triplets, 1100)})
    assert sorted(i for batch in alone for i in batch) == list(range(2000))


def test_graphs_above_the_budget_are_refused_skipped_with_a_count_or_alone():
    atoms = ATOMS.copy()
    atoms[[7, 90]] = 500
    with pytest.raises(ValueError, match=r"Graph 7 has 500 nodes, a batch holds 400 real ones: 100 too many. 2 graphs"):
        len(sampler_of(atoms))
    skipping = sampler_of(atoms, over_size_strategy="Skip")
    assert sorted(i for batch in skipping for i in batch) == sorted({*range(2000)} - {7, 90})
    assert skipping.num_skipped == 2
    assert "skipped: 2 graphs" in skipping.describe()
    alone = list(sampler_of(atoms, over_size_strategy="Alone"))
    assert [7] in alone
    assert [90] in alone
    assert sorted(i for batch in alone for i in batch) == list(range(2000))
    with pytest.raises(ValueError, match="so no graph can be Alone"):
        popgeo.FixedSizeDataLoader([graph(2, 1, 0)], over_size_strategy="Alone")


@pytest.mark.parametrize("world_size", [2, 5])
def test_ranks_are_disjoint_complete_equally_many_and_by_choice_equally_long(world_size):
    ranks = [list(sampler_of(rank=rank, world_size=world_size, cost="edges")) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(2000))
    work = np.array([[EDGES[batch].sum() for batch in batches] for batches in ranks])
    spread = work.max(axis=0) / work.mean(axis=0) - 1
    plain = [list(sampler_of(rank=rank, world_size=world_size)) for rank in range(world_size)]
    unequal = np.array([[EDGES[batch].sum() for batch in batches] for batches in plain])
    assert spread.max() < 0.02 < (unequal.max(axis=0) / unequal.mean(axis=0) - 1).max()
    assert all(ATOMS[batch].sum() <= 400 and EDGES[batch].sum() <= 24_000 for batches in ranks for batch in batches)
    assert len(ranks[0]) <= len(plain[0]) + 1
    assert (
        f"cost of the slowest of {world_size} ranks: {spread.mean():.2%} above"
        in sampler_of(rank=0, world_size=world_size, cost=lambda sizes: sizes[:, 1]).describe()
    )


@pytest.mark.parametrize("cost", [None, "nodes"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1), (1, 4), (2, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(before, after, cost):
    ranks = [sampler_of(rank=rank, world_size=before, cost=cost) for rank in range(before)]
    used = []
    for sampler in ranks:
        batches = iter(sampler)
        used += [next(batches) for _ in range(7)]
    state = pickle.loads(pickle.dumps(ranks[-1].state_dict()))
    for rank in range(after):
        sampler = sampler_of(rank=rank, world_size=after, cost=cost)
        sampler.load_state_dict(state)
        sampler.set_epoch(0)
        used += list(sampler)
        assert sampler.epoch == 1
    assert sorted(i for batch in used for i in batch) == list(range(2000))


@pytest.mark.parametrize("loader", [DataLoader, PyGDataLoader])
# Python 3.14 would start workers by a server, to which torch can send no more than 256 tensors.
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}]
)
def test_loaders_take_it_as_a_batch_sampler(loader, workers):
    graphs = [graph(2 + seed % 5, 3 * (seed % 4), seed) for seed in range(40)]
    options = FixedSizeOptions(num_nodes=25, num_edges=40, num_graphs=6)
    sampler = FixedSizeBatchSampler(graphs, fixed_size_options=options, seed=5)
    again = FixedSizeBatchSampler(graphs, fixed_size_options=options, seed=5)
    batches = loader(graphs, batch_sampler=sampler, collate_fn=FixedSizeCollater(options, True), **workers)
    for _ in range(2):
        expected = list(again)
        assert len(batches) == len(expected)
        given = list(batches)
        charges = [batch.charge[: len(ids)].tolist() for batch, ids in zip(given, expected, strict=True)]
        assert charges == [[int(graphs[i].charge) for i in ids] for ids in expected]
        if loader is DataLoader:
            assert {tuple(batch.x.shape) for batch in given} == {(25, graphs[0].x.shape[1])}
            assert [int(batch.graphs_mask.sum()) for batch in given] == [len(ids) for ids in expected]


def test_a_state_counts_what_was_used_where_workers_draw_ahead():
    sampler, whole = sampler_of(), [list(batch) for batch in sampler_of()]
    batches = iter(sampler)
    for _ in range(9):
        next(batches)
    state = sampler.state_dict(num_batches=4)
    assert sampler.state_dict()["position"] == 9
    again = sampler_of()
    again.load_state_dict(state)
    assert list(again) == whole[4:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"atoms": -ATOMS}, r"Graph \d+ has -\d+ nodes; no size may be negative"),
        ({"atoms": ATOMS[:-1]}, r"different numbers of graphs: \{'nodes': 1999, 'edges': 2000\}"),
        ({"atoms": ATOMS / 2}, "Sizes of nodes are float64"),
        ({"options": None}, "num_nodes is given, but no fixed_size_options"),
        ({"atoms": None, "edges": None}, "There are no sizes"),
        ({"cost": "atoms"}, r"cost is 'atoms'; pass one of \['nodes', 'edges'\]"),
        ({"cost": np.ones(3)}, r"Costs have the shape \(3,\); give 2000"),
        ({"fixed_size_strategy": "PadToMax"}, "PadToMax ignores the sizes"),
        ({"over_size_strategy": "TrimNodes"}, "A sampler cannot trim graphs"),
        ({"rank": 1}, "rank is 1 and world_size None"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sampler_of(**arguments)


def test_more_ranks_than_graphs_are_refused_and_graphs_of_size_0_are_not():
    with pytest.raises(ValueError, match="There are 3 graphs for 4 ranks"):
        len(sampler_of([3, 4, 5], [1, 1, 1], rank=0, world_size=4))
    assert sorted(next(iter(sampler_of([0, 0, 3], [0, 0, 2])))) == [0, 1, 2]
    assert list(sampler_of([], [])) == []


def test_sums_above_32_bits_are_right():
    large = np.full(20, 2**30, np.int32)
    sampler = FixedSizeBatchSampler(budgets={"bytes": (large, 5 * 2**30)})
    assert sorted(len(batch) for batch in sampler) == [5, 5, 5, 5]


def test_it_says_how_full_it_is():
    assert repr(sampler_of()).startswith("FixedSizeBatchSampler(2,000 graphs -> ")
    assert "nodes: " in sampler_of(rank=0, world_size=4).describe()
    assert "nodes of the slowest of 4 ranks" in sampler_of(rank=0, world_size=4).describe()


def test_a_state_counts_what_was_used_also_where_workers_have_drawn_the_epoch_to_its_end():
    sampler = sampler_of()
    batches = list(sampler)
    again = sampler_of()
    again.load_state_dict(sampler.state_dict(num_batches=len(batches) - 2))
    assert list(again) == batches[-2:]
    assert sampler.state_dict(num_batches=len(batches)) == sampler.state_dict()
    twice = sampler_of()  # of a pass that had been resumed itself, by another number of ranks
    twice.load_state_dict(sampler_of(rank=0, world_size=2).state_dict() | sampler.state_dict(num_batches=4))
    list(twice)
    again.load_state_dict(twice.state_dict(num_batches=6))
    assert list(again) == batches[6:]


@pytest.mark.parametrize("used", [-1, 2])
def test_more_batches_than_were_drawn_cannot_have_been_used(used):
    sampler = sampler_of()
    next(iter(sampler))
    with pytest.raises(ValueError, match=f"{used} items cannot have been used: 1 of this pass"):
        sampler.state_dict(num_batches=used)
    with pytest.raises(ValueError, match="5 items cannot have been used: 0 of this pass"):
        sampler_of().state_dict(num_batches=5)


def test_two_passes_at_once_are_two_epochs():
    sampler, alone = sampler_of(), sampler_of()
    first, second = iter(sampler), iter(sampler)
    mixed = [[], []]
    for one in first:
        mixed[0].append(one)
        mixed[1] += [batch for _, batch in zip(range(1), second, strict=False)]
    assert mixed[0] == list(alone)
    assert mixed[1] + list(second) == list(alone)
