"""Claims about the epochs of a loader or batch sampler: which graphs come, in which order, and to which rank."""

import copy
from itertools import islice

import torch

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.loader_subject import LoaderSubject, order_of, require_once, set_epoch
from popgeo.testing.planted_graphs import DRAWS, DrawnGraphs, read_rows

_BOTH = (SubjectKind.LOADER, SubjectKind.SAMPLER)
_RANKS = tuple({"world_size": number} for number in (2, 3, 4))


@claim("each graph once", *_BOTH, tried="two epochs, and one after an interrupted pass")
@claim("once over ranks", *_BOTH, tried="all ranks of 2, 3 and 4", settings=_RANKS)
@claim("once from workers", SubjectKind.LOADER, tried="2 workers", settings=({"num_workers": 2},))
def each_graph_once(subject: LoaderSubject, case: Case) -> None:
    """Check that each graph comes exactly once per epoch over all ranks or workers, or is counted as left out.

    Cause: the last batch is dropped, each worker or rank reads the whole dataset, or a sampler repeats graphs to
    balance ranks.
    """
    world_size = case.settings.get("world_size")
    ranks = [{"rank": rank, "world_size": world_size} for rank in range(world_size)] if world_size else [case.settings]
    loaders = [subject.made(case.graphs, **choices) for choices in ranks]
    for epoch in (0, 1):
        batches = [rows for loader in loaders for rows in subject.epoch(loader, case, epoch)]
        require_once(batches, case.graphs, loaders[0], f"in epoch {epoch} over {dict(case.settings) or 'one process'}")
    if not case.settings:
        next(iter(loaders[0]), None)
        again = subject.epoch(loaders[0], case)
        require_once(again, case.graphs, loaders[0], "after a pass that was interrupted at its first batch")


@claim("equal ranks", *_BOTH, settings=_RANKS)
def ranks_are_equal(subject: LoaderSubject, case: Case) -> None:
    """Check that all ranks have equally many batches.

    Tried: the batches of 2, 3 and 4 ranks are counted.

    Cause: batches are distributed unevenly. The rank with more batches then waits forever for the others.
    """
    size = case.settings["world_size"]
    lengths = [len(subject.epoch(subject.made(case.graphs, rank=r, world_size=size), case)) for r in range(size)]
    if len(set(lengths)) > 1:
        raise BrokenError(f"{size} ranks have {lengths} batches")


@claim("new random numbers", SubjectKind.LOADER, settings=tuple({"library": library} for library in DRAWS))
def random_numbers_are_new(subject: LoaderSubject, case: Case) -> None:
    """Check that a dataset draws a different random number for each graph and in each epoch.

    Tried: a dataset draws a number for each requested graph, from 2 workers, in two epochs.

    Cause: workers copy one state of a generator (numpy's issue of 2018 in torch's workers), or each epoch sets the same
    seed. Seed by torch.initial_seed() and the worker's number.
    """
    loader = subject.made(DrawnGraphs(case.graphs, case.settings["library"]), num_workers=2)
    drawn: list[set[float]] = []
    for epoch in (0, 1):
        batches = subject.epoch(loader, case, epoch, needs=["x"])
        drawn.append({float(draw) for rows in batches for draw in rows["x"][rows["nodes_mask"], 0]})
        if len(drawn[-1]) < len(case.graphs):
            raise BrokenError(f"{len(case.graphs)} graphs have {len(drawn[-1])} different random numbers")
    if drawn[0] & drawn[1]:
        raise BrokenError("epoch 1 repeats random numbers of epoch 0")


@claim("resumes", *_BOTH)
def resumes(subject: LoaderSubject, case: Case) -> None:
    """Check that a resumed run continues with the graphs that the whole run would have had.

    Tried: state_dict in the middle of epoch 1, load_state_dict into a new loader, and the next epoch.

    Cause: the position is not in the state, counts prefetched batches, or a restart draws another order.
    """
    whole, loader, again = (subject.made(case.graphs) for _ in range(3))
    if not hasattr(loader, "state_dict"):
        raise NotTriedError("the loader has no state_dict")
    expected = [order_of(subject.epoch(whole, case)) for _ in range(3)]
    half = max(1, len(subject.epoch(loader, case)) // 2)
    batches = iter(loader)
    used = [read_rows(subject.read(batch), case.graphs) for batch in islice(batches, half)]
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    found = [order_of([*used, *subject.epoch(again, case)]), order_of(subject.epoch(again, case))]
    for epoch, order in enumerate(found, 1):
        if order != expected[epoch]:
            raise BrokenError(
                f"after a stop at batch {half} of epoch 1, epoch {epoch} has the graphs {order[:9]}, but without a "
                f"stop {expected[epoch][:9]}"
            )


@claim("order changes", *_BOTH)
def order_changes(subject: LoaderSubject, case: Case) -> None:
    """Check that each epoch has its own order.

    Tried: the orders of three epochs are compared.

    Cause: set_epoch does not reach the sampler, or the sampler's generator is seeded again for each epoch.
    """
    loader = subject.made(case.graphs)
    orders = [order_of(subject.epoch(loader, case, epoch)) for epoch in range(3)]
    if all(order == sorted(order) for order in orders):  # the planted graphs are numbered in their order
        raise NotTriedError("the loader keeps the order of the graphs")
    if len(case.graphs) < 5:
        raise NotTriedError("there are too few graphs")
    if any(orders[i] == orders[k] for i, k in ((0, 1), (1, 2), (0, 2))):
        raise BrokenError(f"two of three epochs have the same order: {orders[0][:9]}")


@claim("order by seed", *_BOTH)
def order_comes_again(subject: LoaderSubject, case: Case) -> None:
    """Check that only the seed and the number of the epoch determine the order.

    Tried: two loaders of one seed, one of another seed, and one after set_epoch(1) are compared, while torch's global
    generator changes.

    Cause: the order is drawn from torch's global generator, or from a generator with other users.
    """
    orders = []
    with torch.random.fork_rng():
        for drawn, seed in enumerate((5, 5, 6)):
            torch.manual_seed(drawn)
            loader = subject.made(case.graphs, seed=seed)
            orders.append([order_of(subject.epoch(loader, case)) for _ in range(2)])
    if orders[0] != orders[1]:
        raise BrokenError(f"loaders of one seed have different orders: {orders[0][0][:9]} and {orders[1][0][:9]}")
    if orders[0] == orders[2] and len(case.graphs) > 4:
        raise BrokenError(f"loaders of seeds 5 and 6 have the same order: {orders[0][0][:9]}")
    late = subject.made(case.graphs, seed=5)
    if set_epoch(late, 1) and order_of(subject.epoch(late, case)) != orders[0][1]:
        raise BrokenError("after set_epoch(1), epoch 1 has a different order than after epoch 0")
