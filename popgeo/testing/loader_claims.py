"""What a loader or a batch sampler promises of its epochs: what comes, in which order, and to whom."""

import copy
from itertools import islice

import torch

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.loader_subject import LoaderSubject, order_of, require_once, set_epoch
from popgeo.testing.planted_graphs import DRAWS, DrawnGraphs, read_rows

_BOTH = (SubjectKind.LOADER, SubjectKind.SAMPLER)
_RANKS = tuple({"world_size": number} for number in (2, 3, 4))


@claim("each graph once", *_BOTH, tried="two epochs, and one after a pass that was broken off")
@claim("once over ranks", *_BOTH, tried="the ranks of 2, 3 and 4 together", settings=_RANKS)
@claim("once from workers", SubjectKind.LOADER, tried="2 workers", settings=({"num_workers": 2},))
def each_graph_once(subject: LoaderSubject, case: Case) -> None:
    """Each graph comes exactly once in an epoch, however it is shared out; graphs that are left out are counted.

    Cause: the last batch is dropped, each worker or rank walks the whole dataset, or a sampler evens out by repeats.
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
        require_once(again, case.graphs, loaders[0], "after a pass that was broken off at its first batch")


@claim("equal ranks", *_BOTH, settings=_RANKS)
def ranks_are_equal(subject: LoaderSubject, case: Case) -> None:
    """All ranks have equally many batches.

    Tried: the batches of 2, 3 and 4 ranks are counted.

    Cause: batches are dealt out without evening them: the rank with more of them waits forever for the others.
    """
    size = case.settings["world_size"]
    lengths = [len(subject.epoch(subject.made(case.graphs, rank=r, world_size=size), case)) for r in range(size)]
    if len(set(lengths)) > 1:
        raise BrokenError(f"{size} ranks have {lengths} batches")


@claim("new random numbers", SubjectKind.LOADER, settings=tuple({"library": library} for library in DRAWS))
def random_numbers_are_new(subject: LoaderSubject, case: Case) -> None:
    """A dataset draws a different number for each graph and in each epoch.

    Tried: a dataset that draws a number for each graph it is asked for, from 2 workers, in two epochs.

    Cause: workers are copies of one state of a generator (numpy's issue of 2018 in torch's workers), or the same seed
    is set in each epoch: seed by torch.initial_seed() and the worker's number.
    """
    loader = subject.made(DrawnGraphs(case.graphs, case.settings["library"]), num_workers=2)
    drawn: list[set[float]] = []
    for epoch in (0, 1):
        batches = subject.epoch(loader, case, epoch, needs=["x"])
        drawn.append({float(draw) for rows in batches for draw in rows["x"][rows["nodes_mask"], 0]})
        if len(drawn[-1]) < len(case.graphs):
            raise BrokenError(f"{len(case.graphs)} graphs have {len(drawn[-1])} different random numbers")
    if drawn[0] & drawn[1]:
        raise BrokenError("the random numbers of epoch 0 come again in epoch 1")


@claim("resumes", *_BOTH)
def resumes(subject: LoaderSubject, case: Case) -> None:
    """A run that was broken off continues with the graphs that it would have had.

    Tried: state_dict in the middle of epoch 1, load_state_dict into a new loader, and the epoch after it.

    Cause: the position is not in the state, counts what was drawn ahead, or another order is drawn after a restart.
    """
    whole, loader, again = (subject.made(case.graphs) for _ in range(3))
    if not hasattr(loader, "state_dict"):
        raise NotTriedError("there is no state_dict")
    expected = [order_of(subject.epoch(whole, case)) for _ in range(3)]
    half = max(1, len(subject.epoch(loader, case)) // 2)
    batches = iter(loader)
    used = [read_rows(subject.read(batch), case.graphs) for batch in islice(batches, half)]
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    found = [order_of([*used, *subject.epoch(again, case)]), order_of(subject.epoch(again, case))]
    for epoch, order in enumerate(found, 1):
        if order != expected[epoch]:
            raise BrokenError(
                f"stopped after {half} batches of epoch 1, epoch {epoch} has the graphs {order[:9]}, and without a "
                f"stop {expected[epoch][:9]}"
            )


@claim("order changes", *_BOTH)
def order_changes(subject: LoaderSubject, case: Case) -> None:
    """Each epoch has an order of its own.

    Tried: the order of three epochs.

    Cause: set_epoch is not handed on to the sampler, or its generator is seeded again for each epoch.
    """
    loader = subject.made(case.graphs)
    orders = [order_of(subject.epoch(loader, case, epoch)) for epoch in range(3)]
    if all(order == sorted(order) for order in orders):  # the planted graphs are numbered in the order given
        raise NotTriedError("it keeps the order of the graphs")
    if len(case.graphs) < 5:
        raise NotTriedError("there are too few graphs")
    if any(orders[i] == orders[k] for i, k in ((0, 1), (1, 2), (0, 2))):
        raise BrokenError(f"two of three epochs have one order: {orders[0][:9]}")


@claim("order by seed", *_BOTH)
def order_comes_again(subject: LoaderSubject, case: Case) -> None:
    """The seed and the number of the epoch decide the order, and nothing else does.

    Tried: two loaders of one seed, one of another, and one told set_epoch(1); torch's own numbers move on.

    Cause: the order is drawn from torch's global numbers, or from a generator that other things draw from, too.
    """
    orders = []
    with torch.random.fork_rng():
        for drawn, seed in enumerate((5, 5, 6)):
            torch.manual_seed(drawn)
            loader = subject.made(case.graphs, seed=seed)
            orders.append([order_of(subject.epoch(loader, case)) for _ in range(2)])
    if orders[0] != orders[1]:
        raise BrokenError(f"loaders of one seed have the orders {orders[0][0][:9]} and {orders[1][0][:9]}")
    if orders[0] == orders[2] and len(case.graphs) > 4:
        raise BrokenError(f"loaders of seeds 5 and 6 have one order: {orders[0][0][:9]}")
    late = subject.made(case.graphs, seed=5)
    if set_epoch(late, 1) and order_of(subject.epoch(late, case)) != orders[0][1]:
        raise BrokenError("epoch 1 has another order after set_epoch(1) than after epoch 0")
