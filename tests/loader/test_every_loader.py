"""Claims about every loader: it resumes in the middle of an epoch, shares its batches out, and feeds a device."""

import copy
import inspect
import itertools
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import TemporalData

from popgeo.data import FixedSizeOptions
from popgeo.loader import (
    FixedSizeClusterLoader,
    FixedSizeDataLoader,
    FixedSizeEventLoader,
    FixedSizeLinkLoader,
    FixedSizeNeighborLoader,
    TripleLoader,
)
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.epoch_loader import _OF_TORCH, EpochLoader
from popgeo.sampling import EntityShards
from tests.support.large_graphs import random_graph
from tests.support.loaders import GRAPHS, OPTIONS

GRAPH, WHOLE = random_graph(), FixedSizeOptions(num_nodes=61, num_edges=240)
TRIPLES = torch.stack([torch.arange(90) % 11, torch.arange(90) % 3, (torch.arange(90) * 7 + 1) % 11], dim=1)
EVENTS = TemporalData(torch.arange(23) % 5, 7 + torch.arange(23) % 9, torch.arange(23), torch.arange(23.0)[:, None])

KINDS = [
    FixedSizeClusterLoader,
    FixedSizeDataLoader,
    FixedSizeEventLoader,
    FixedSizeLinkLoader,
    FixedSizeNeighborLoader,
    TripleLoader,
]
LOADERS: dict[str, Callable[..., EpochLoader]] = {
    "graphs": lambda **choices: FixedSizeDataLoader(
        GRAPHS, fixed_size_options=OPTIONS, fixed_size_strategy="StreamPack", **{"shuffle": True, "seed": 0, **choices}
    ),
    "neighbors": lambda **choices: FixedSizeNeighborLoader(
        GRAPH, [3, 2], batch_size=8, shuffle=True, fixed_size_options=WHOLE, **{"seed": 0, **choices}
    ),
    "links": lambda **choices: FixedSizeLinkLoader(
        GRAPH,
        [2],
        batch_size=40,
        neg_sampling="binary",
        shuffle=True,
        fixed_size_options=WHOLE,
        **{"seed": 0, **choices},
    ),
    "clusters": lambda **choices: FixedSizeClusterLoader(
        GRAPH, parts=torch.arange(60) % 12, batch_size=2, **{"seed": 0, **choices}
    ),
    "events": lambda **choices: FixedSizeEventLoader(EVENTS, 4, **{"seed": 5, **choices}),
    "triples": lambda **choices: TripleLoader(
        TRIPLES, EntityShards.deal(11, num_shards=2), slots=5, num_negatives=3, **{"seed": 5, **choices}
    ),
}
SHARED_OUT = {  # the attribute that numbers the items, its mask, and all numbers
    "graphs": ("charge", "graphs_mask", range(40)),
    "neighbors": ("n_id", "seeds_mask", range(60)),
    "clusters": ("n_id", "nodes_mask", range(60)),
    "events": ("t", "events_mask", range(23)),
}


def tensors_of(batch: Any) -> Iterator[Tensor]:
    stores = [batch._asdict()] if isinstance(batch, tuple) else batch.stores
    return (value for store in stores for value in store.values() if isinstance(value, Tensor))


def noted(batches: Iterable[Any]) -> list[list[Any]]:
    return [[tensor.tolist() for tensor in tensors_of(batch)] for batch in batches]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_that_was_broken_off_goes_on_as_if_it_had_not_been(kind: str):
    uninterrupted = LOADERS[kind]()
    epochs = [noted(uninterrupted) for _ in range(3)]
    assert epochs[0] != epochs[1] or kind == "clusters"
    broken_off = LOADERS[kind]()
    noted(broken_off)
    items = iter(broken_off)
    used = noted([next(items), next(items)])
    state = pickle.loads(pickle.dumps(broken_off.state_dict()))
    again = LOADERS[kind]()
    again.load_state_dict(state)
    assert [*used, *noted(again)] == epochs[1]
    assert noted(again) == epochs[2]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_of_another_number_of_things_is_refused(kind: str):
    state = LOADERS[kind]().state_dict()
    (name,) = (name for name in state if name.startswith("num_"))
    with pytest.raises(ValueError, match="Load it into a loader of the same dataset"):
        LOADERS[kind]().load_state_dict({**state, name: state[name] + 1})


@pytest.mark.parametrize("kind", SHARED_OUT)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_are_disjoint_complete_and_equally_many(kind: str, world_size: int):
    name, mask, everything = SHARED_OUT[kind]
    loaders = [LOADERS[kind](rank=rank, world_size=world_size) for rank in range(world_size)]
    lengths = {len(loader) for loader in loaders}
    shares = [list(loader) for loader in loaders]
    assert lengths == {len(share) for share in shares}
    assert len(lengths) == 1
    found = [number for share in shares for batch in share for number in batch[name][batch[mask]].tolist()]
    assert sorted(found) == list(everything)


def test_ranks_have_parts_of_the_same_batches_of_triples():
    whole, parts = LOADERS["triples"](), [LOADERS["triples"](rank=rank, world_size=2) for rank in range(2)]
    assert [part.rank for part in parts] == [0, 1]
    for batch, *halves in zip(whole, *parts, strict=True):
        for tensor, one, other in zip(batch, *halves, strict=True):
            assert torch.equal(tensor, torch.cat([one, other]))
    assert parts[0].state_dict() == parts[1].state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        *((kind, choices) for kind in LOADERS for choices in ({"background": True}, {"device": "cpu"})),
        *((kind, {"num_workers": 1}) for kind in ("events", "triples")),  # of the others by tests of their own
    ],
    ids=str,
)
def test_threads_workers_and_devices_change_no_batch(kind: str, choices: dict[str, Any]):
    loader, plain = LOADERS[kind](**choices), LOADERS[kind]()
    assert noted(loader) == noted(plain)
    assert type(next(iter(loader))).__name__ == type(next(iter(plain))).__name__


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_come_as_plain_arrays_where_they_are_wanted(kind: str):
    arrays, batch = next(iter(LOADERS[kind](output="numpy"))), next(iter(LOADERS[kind]()))
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    assert [array.tolist() for array in arrays.values()] == [tensor.tolist() for tensor in tensors_of(batch)]


@pytest.mark.parametrize("kind", LOADERS)
def test_several_batches_in_one_item_are_concatenated_on_dimension_0(kind: str):
    alone, together = LOADERS[kind](drop_last=True), LOADERS[kind](options=2, drop_last=True)
    item, *_ = together
    first, second, *_ = alone
    for joined, one, other in zip(*map(tensors_of, (item, first, second)), strict=True):
        assert torch.equal(joined, torch.cat([one, other]))


@pytest.mark.parametrize("kind", LOADERS)
def test_what_decides_nothing_here_is_refused(kind: str):
    with pytest.raises(ValueError, match="takes no collate_fn"):
        LOADERS[kind](collate_fn=list)
    with pytest.raises(ValueError, match="rank is 3 and world_size 2"):
        LOADERS[kind](rank=3, world_size=2)
    with pytest.raises(TypeError, match=r"Loader has no argument 'num_workes'\. Did you mean 'num_workers'\?"):
        LOADERS[kind](num_workes=2)
    if kind not in ("graphs", "neighbors"):
        with pytest.raises(ValueError, match="batch_sampler"):
            LOADERS[kind](batch_sampler=[[0, 1]])


@pytest.mark.parametrize("kind", LOADERS)
def test_lightning_makes_a_loader_again_in_order_to_predict_and_gets_the_same_batches(kind: str):
    data = pytest.importorskip("lightning.pytorch.utilities.data")
    stage = pytest.importorskip("lightning.pytorch.trainer.states").RunningStage.PREDICTING
    loader = LOADERS[kind]()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a custom batch sampler")
        again = data._update_dataloader(loader, loader.sampler, mode=stage)
    assert type(again) is type(loader)
    assert again.batch_sampler is loader.batch_sampler
    assert len(again) == len(loader) == len([*again])
    assert (again.epoch, loader.epoch) == (1, 1)
    assert copy.copy(loader).batch_sampler is loader.batch_sampler


@pytest.mark.parametrize("kind", KINDS)
def test_help_and_type_checkers_know_every_argument_of_a_loader(kind: type):
    *named, last = [*inspect.signature(kind).parameters.values()]
    assert all(one.annotation is not one.empty for one in named)
    keys = get_args(last.annotation)[0].__annotations__
    assert {one.name for one in named}.isdisjoint(keys)
    assert {one.name for one in fields(EpochChoices)} <= {*keys, *(one.name for one in named)}
    for name, annotation in EpochChoices.__annotations__.items():
        assert keys.get(name, annotation) == annotation
    assert inspect.signature(DataLoader.__init__).parameters.keys() >= _OF_TORCH
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument 'num_worker'. Did you mean 'num_workers'"):
        kind(num_worker=2)


@pytest.mark.parametrize(
    ("loader", "names"),
    [
        (FixedSizeDataLoader, ["dataset", "batch_size", "shuffle", "fixed_size_options"]),
        (FixedSizeNeighborLoader, ["data", "num_neighbors", "input_nodes", "input_time"]),
        (TripleLoader, ["triples", "shards", "slots", "num_negatives"]),
    ],
)
def test_help_and_editors_are_told_the_arguments_of_a_loader(loader: type, names: list[str]):
    assert [*inspect.signature(loader).parameters][:4] == names


NUMBERS = [10**9, -5, 2**70, None, "1", 1.5, float("nan"), True, [], {}]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_that_makes_no_sense_is_refused_and_changes_nothing(kind: str):
    loader = LOADERS[kind]()
    next(iter(loader))
    state = loader.state_dict()
    wrong = [{**state, name: number} for name in ("position", "used") for number in NUMBERS if number != []]
    wrong += [{**state, name: number} for name in ("epoch", "seed", "batches") for number in NUMBERS[2:]]
    wrong += [{**state, "epoch": -5}]
    for at, (number, whole) in itertools.product(range(3), [(n, state["used"][0]) for n in NUMBERS]):
        wrong.append({**state, "used": [[*whole[:at], number, *whole[at + 1 :]]]})
    wrong += [{**state, "used": [[1, 1]]}, {k: v for k, v in state.items() if k != "seed"}, [], None, "state"]
    again = LOADERS[kind]()
    fresh = again.state_dict()
    for one in wrong:
        with pytest.raises(ValueError, match=r"[Tt]he state|The state|Load it"):
            again.load_state_dict(one)
        assert again.state_dict() == fresh
    again.load_state_dict(state)
    assert again.state_dict() == state
