"""Under every trainer each graph comes once per epoch over all ranks, in a new order; a killed run can resume."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.support import quick_python, sampler_runs
from tests.support.graphs import same
from tests.support.loaders import GRAPHS, loader_of, seeds
from tests.support.trainer_runs import EPOCHS, KILLED_AFTER, KILLED_IN, RUNS, ModelRun, lives, make_loader

ALL = list(range(37))


@pytest.fixture(autouse=True)
def no_accelerator_is_left() -> Iterator[None]:
    yield
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state()


def is_missing(trainer: str) -> bool:
    return trainer != "plain" and find_spec(trainer) is None


def skip_without(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[trainers]' in a clone")


def check(runs: list[tuple[ModelRun, ModelRun]]) -> None:
    """Check that ranks that were killed and resumed saw the same graphs as ranks that were not."""
    whole: list[list[ModelRun]] = []
    for rank, (before, after) in enumerate(runs):
        loader = make_loader(rank=rank, world_size=len(runs))
        expected = [[seeds([batch]) for batch in loader] for _ in range(EPOCHS)]
        flat = [[i for batch in epoch for i in batch] for epoch in expected]
        num_seen = sum(len(batch) for batch in expected[KILLED_IN][:KILLED_AFTER])
        assert before == [*flat[:KILLED_IN], flat[KILLED_IN][:num_seen]]
        assert after[: EPOCHS - KILLED_IN] == [flat[KILLED_IN][num_seen:], *flat[KILLED_IN + 1 :]]
        whole.append([*flat, *after[EPOCHS - KILLED_IN :]])
    for epoch in zip(*whole, strict=True):
        assert sorted(i for seen in epoch for i in seen) == ALL
    assert len({tuple(epoch) for epoch in whole[0][:EPOCHS]}) == EPOCHS


def by_two_processes(module: str, folder: Path, trainers: list[str]) -> list[dict[str, Any]]:
    """Return the records of torchrun's two processes after each has run a module of support."""
    python = quick_python.command()
    command = [*python, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--no-python"]
    script = [*python, "-m", module, str(folder), *trainers]
    ended = subprocess.run([*command, *script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("trainer", RUNS)
@pytest.mark.filterwarnings("ignore")  # of the trainers' own
def test_one_process_sees_every_graph_once_an_epoch_also_when_killed(trainer: str, tmp_path: Path):
    if is_missing(trainer):
        pytest.skip(f"{trainer} is not installed: pip install '.[trainers]' in a clone")
    before, after = lives(trainer, tmp_path)
    check([(before, after)])


def test_two_processes_see_every_graph_once_an_epoch_also_when_killed(tmp_path: Path):
    trainers = [trainer for trainer in RUNS if not is_missing(trainer)]
    ranks = by_two_processes("tests.support.trainer_runs", tmp_path, trainers)
    for trainer in trainers:
        check([rank[trainer] for rank in ranks])
    # A loader made before the processes have a group waits for it, and says so if it is used too early.
    assert "WORLD_SIZE is 2, but these processes have no group yet" in ranks[0]["refusal"][0]
    assert sorted(ranks[0]["early"][1] + ranks[1]["early"][1]) == ALL
    assert ranks[0]["early"][0] == ranks[1]["early"][0] == len(make_loader(rank=0, world_size=2))


@pytest.mark.parametrize("trainer", sampler_runs.RUNS)
@pytest.mark.filterwarnings("ignore")  # of the trainers' own
def test_a_trainer_takes_a_batch_sampler_and_goes_on_with_it(trainer: str):
    if is_missing(trainer):
        pytest.skip(f"{trainer} is not installed: pip install '.[trainers]' in a clone")
    seen = sampler_runs.RUNS[trainer]()
    assert all(sorted(epoch) == list(range(sampler_runs.NUMBER)) for epoch in seen.values())
    assert seen["epoch 0"] != seen["epoch 1"]


def test_two_processes_share_the_batches_of_a_sampler_under_every_trainer(tmp_path: Path):
    trainers = [trainer for trainer in sampler_runs.RUNS if not is_missing(trainer)]
    ranks = by_two_processes("tests.support.sampler_runs", tmp_path, trainers)
    for trainer in trainers:
        for epoch in ranks[0][trainer]:
            both = [*ranks[0][trainer][epoch], *ranks[1][trainer][epoch]]
            assert sorted(both) == list(range(sampler_runs.NUMBER)), (trainer, epoch)


@pytest.mark.parametrize(("trainer", "known"), [("lightning", ("2.4", "2.5", "2.6")), ("accelerate", ("1.",))])
def test_popgeo_knows_how_this_version_of_a_trainer_makes_loaders_again(trainer: str, known: tuple[str, ...]):
    """`loader_class` and `batch_size` depend on these versions.

    Before adding one, compare `lightning/pytorch/utilities/data.py` (arguments of a new loader) and
    `accelerate/data_loader.py` (`BatchSamplerShard`).
    """
    skip_without(trainer)
    assert version(trainer).startswith(known)


def test_a_launcher_without_a_group_is_refused_and_an_explicit_shard_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"WORLD_SIZE is 2.*init_process_group"):
        next(iter(make_loader()))
    assert sorted(seeds(make_loader(rank=0, world_size=1))) == ALL


def test_a_sampler_beside_several_processes_must_say_whose_graphs_it_draws(monkeypatch: pytest.MonkeyPatch):
    mine = DistributedSampler(GRAPHS[:36], num_replicas=2, rank=1)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with pytest.raises(ValueError, match="a sampler or batch_sampler draws in each by itself"):
        len(loader_of(GRAPHS[:36], sampler=mine))
    assert sorted(seeds(loader_of(GRAPHS[:36], sampler=mine, rank=0, world_size=1))) == sorted(mine)


def test_trainers_find_a_sampler_that_shards_and_choose_the_epoch_by_it():
    loader = make_loader(rank=1, world_size=2)
    assert isinstance(loader.sampler, DistributedSampler)
    assert (loader.sampler.rank, loader.sampler.num_replicas, len(loader.sampler)) == (1, 2, 17)
    loader.sampler.set_epoch(2)
    assert list(loader.sampler) == seeds(loader)
    assert loader.epoch == 3


def test_a_trainer_that_counts_from_zero_after_a_restart_is_followed():
    loader, again = make_loader(), make_loader()
    orders = [seeds(loader) for _ in range(4)]
    again.load_state_dict({"epoch": 2, "position": 0, "seed": 0, "num_graphs": 37})
    for expected in orders[2:]:
        again.sampler.set_epoch(0 if expected is orders[2] else 1)
        assert seeds(again) == expected


def test_another_data_loader_with_the_same_batches_runs_through_epochs_of_its_own_order():
    loader = make_loader()
    copy = DataLoader(GRAPHS[:37], batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    first, second, third = seeds(copy), seeds(copy), seeds(loader)
    assert sorted(first) == sorted(second) == sorted(third) == ALL
    assert len({tuple(order) for order in (first, second, third)}) == 3
    assert same(next(iter(make_loader())).x, next(iter(copy)).x) is False  # the fourth epoch, not the first


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (lambda loader: loader.batch_sampler.drop_last, "dealing them out again would lose or repeat graphs"),
        (lambda loader: loader.batch_sampler.state_dict(), "has state_dict and load_state_dict itself"),
        (lambda loader: next(iter(make_loader(options=2).batch_sampler)), "An item of this loader has 2 batches"),
        (lambda loader: (next(iter(loader.batch_sampler)), loader.state_dict()), "is not known here"),
    ],
)
def test_a_copy_that_could_not_be_right_is_refused(use, found):
    with pytest.raises(ValueError, match=found):
        use(make_loader())


def test_skipping_batches_of_a_loader_that_goes_on_by_itself_is_refused():
    loader = make_loader()
    next(iter(loader))
    again = make_loader()
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="continues at item 1 of epoch 0 by itself"):
        next(iter(again.batch_sampler))


def test_torchdata_resumes_the_loader_by_its_stateful_protocol():
    skip_without("torchdata")
    from torchdata.nodes import IterableWrapper, Loader
    from torchdata.stateful_dataloader import Stateful

    assert isinstance(make_loader(), Stateful)
    nodes, again = Loader(IterableWrapper(make_loader())), Loader(IterableWrapper(make_loader()))
    batches = iter(nodes)
    before = seeds([next(batches), next(batches)])
    again.load_state_dict(nodes.state_dict())
    assert before + seeds(again) == seeds(make_loader())


@pytest.mark.filterwarnings("ignore")
def test_accelerate_makes_no_copy_and_its_own_copies_are_right_or_refused():
    skip_without("accelerate")
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    loader, accelerator = make_loader(), Accelerator(cpu=True)
    assert accelerator.prepare(loader) is loader
    skipped = seeds(accelerator.skip_first_batches(loader, 3))
    assert skipped == seeds(make_loader())[-len(skipped) :]
    assert sorted(seeds(loader)) == ALL
    assert [sorted(seeds(prepare_data_loader(make_loader(), num_processes=1))) for _ in range(2)] == [ALL, ALL]
    with pytest.raises(ValueError, match="dealing them out again"):
        prepare_data_loader(make_loader(), num_processes=2, process_index=0)
