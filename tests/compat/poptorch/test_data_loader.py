"""`poptorch.DataLoader`: batches of whole calls, loading ahead of time, and one process's part."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from popgeo.compat import poptorch

MODES = list(poptorch.DataLoaderMode)


class Numbers(IterableDataset):
    """Iterable dataset of 0, 1, 2, ... divided over workers."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from (torch.tensor([float(number)]) for number in range(start, self.length, step))


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError("broken dataset")


def rows(loader):
    return [batch.flatten().tolist() for batch in loader]


def numbers(length):
    return torch.arange(float(length)).unsqueeze(1)


def options_of(iterations=1, accumulation=1, replicas=1):
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    return options


def test_a_batch_is_that_of_a_whole_call():
    options = options_of(iterations=2, accumulation=3, replicas=2)
    loader = poptorch.DataLoader(options, TensorDataset(numbers(50), numbers(50)), batch_size=2)
    assert loader.combinedBatchSize == 24
    assert loader.options is options
    assert len(loader) == 2  # the last two elements fill no call
    assert [x[:, 0].tolist() for x, _ in loader] == [list(range(24)), list(range(24, 48))]
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(3)


def test_replicas_that_share_inputs_need_fewer():
    options = poptorch.Options().replicationFactor(4)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert poptorch.DataLoader(options, numbers(8), batch_size=3).combinedBatchSize == 6


@pytest.mark.parametrize("mode", MODES)
def test_the_rest_is_dropped_unless_it_is_asked_for(mode):
    expected = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    loader = poptorch.DataLoader(options_of(2), numbers(9), batch_size=2, mode=mode)
    assert [rows(loader) for _ in range(2)] == [expected, expected]
    assert len(loader) == 2
    loader = poptorch.DataLoader(options_of(2), numbers(9), batch_size=2, mode=mode, drop_last=False)
    assert rows(loader) == [*expected, [8.0]]
    assert len(loader) == 3
    loader.terminate()


@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_that_is_left_early_begins_anew(mode):
    loader = poptorch.DataLoader(options_of(), numbers(5), mode=mode)
    for batch in loader:
        if batch.item() == 2:
            break
    assert rows(loader) == [[0.0], [1.0], [2.0], [3.0], [4.0]]


def test_shuffling_follows_torchs_seed_in_all_modes():
    def order(mode, draw_meanwhile):
        torch.manual_seed(5)
        loader, seen = poptorch.DataLoader(options_of(), numbers(40), shuffle=True, mode=mode), []
        for _ in range(2):
            for batch in loader:
                seen.append(batch.item())
                if draw_meanwhile:
                    torch.rand(3)
        return seen

    for mode in (poptorch.DataLoaderMode.Async, poptorch.DataLoaderMode.AsyncRebatched):
        first = order(mode, draw_meanwhile=False)
        assert first == order(mode, draw_meanwhile=True)
        assert sorted(first[:40]) == sorted(first[40:]) == list(range(40))
        assert first[:40] != first[40:]
    assert sorted(order(poptorch.DataLoaderMode.Sync, draw_meanwhile=True)[:40]) == list(range(40))


def test_micro_batches_of_a_sampler_are_joined():
    sampler = BatchSampler(SequentialSampler(range(7)), batch_size=2, drop_last=False)
    loader = poptorch.DataLoader(options_of(2), numbers(7), batch_sampler=sampler)
    assert loader.combinedBatchSize == 4
    assert rows(loader) == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert len(loader) == 2
    loader = poptorch.DataLoader(options_of(3), numbers(7), batch_sampler=sampler)
    assert rows(loader) == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]
    assert len(loader) == 1


def test_the_dataset_may_make_its_own_batches():
    loader = poptorch.DataLoader(options_of(), Numbers(3), batch_size=None, drop_last=False)
    assert loader.combinedBatchSize is None
    assert rows(loader) == [[0.0], [1.0], [2.0]]
    with pytest.raises(TypeError, match="has no len"):
        len(loader)


@pytest.mark.parametrize("mode", MODES)
def test_dictionaries_are_joined_key_by_key(mode):
    data = [{"x": torch.tensor([float(i)]), "y": torch.tensor(i)} for i in range(5)]
    batches = list(poptorch.DataLoader(options_of(2), data, mode=mode))
    assert [(batch["x"].tolist(), batch["y"].tolist()) for batch in batches] == [
        ([[0.0], [1.0]], [0, 1]),
        ([[2.0], [3.0]], [2, 3]),
    ]


@pytest.mark.parametrize(("drop_last", "expected"), [(True, 9), (False, 11)])
def test_workers_of_an_iterable_dataset_lose_nothing_when_rebatched(drop_last, expected):
    loader = poptorch.DataLoader(
        options_of(),
        Numbers(11),
        batch_size=3,
        num_workers=2,
        drop_last=drop_last,
        mode=poptorch.DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=2,
    )
    for _ in range(2):
        batches = rows(loader)
        seen = [number for batch in batches for number in batch]
        assert [len(batch) for batch in batches] == [3, 3, 3] + ([] if drop_last else [2])
        assert len(set(seen)) == len(seen) == expected
    loader.terminate()


def test_each_process_loads_its_own_part():
    def part(process, **arguments):
        options = poptorch.Options().randomSeed(1)
        options.Distributed.configureProcessId(process, 3)
        return poptorch.DataLoader(options, numbers(11), batch_size=2, **arguments)

    assert [rows(part(process)) for process in range(3)] == [[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]]
    everything = [number for process in range(3) for row in rows(part(process, drop_last=False)) for number in row]
    assert sorted(everything) == list(range(11))

    shuffled = [part(process, shuffle=True) for process in range(3)]
    first = [number for loader in shuffled for row in rows(loader) for number in row]
    assert len(set(first)) == len(first) == 6
    epochs = [rows(shuffled[0]) for _ in range(2)]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("choice", ["sampler", "batch_sampler"])
def test_samplers_of_whole_datasets_do_not_choose_from_a_part(choice):
    sampler = torch.utils.data.SequentialSampler(numbers(12))
    arguments = {choice: sampler if choice == "sampler" else [[0, 1], [2, 3]]}
    loaded = []
    for process in range(2):
        options = options_of()
        options.Distributed.configureProcessId(process, 2)
        with pytest.raises(AssertionError, match=f"auto_distributed_partitioning not supported with a {choice}"):
            poptorch.DataLoader(options, numbers(12), **arguments)
        loader = poptorch.DataLoader(options, numbers(12), auto_distributed_partitioning=False, **arguments)
        loaded.append([number for row in rows(loader) for number in row])
    assert loaded[0] == loaded[1] == list(range(12 if choice == "sampler" else 4))


def test_shuffled_parts_never_overlap_and_leave_nobody_out_for_long():
    def loader_of(process):
        options = poptorch.Options().randomSeed(42)
        options.Distributed.configureProcessId(process, 2)
        return poptorch.DataLoader(options, numbers(13), batch_size=3, shuffle=True)

    loaders, seen = [loader_of(process) for process in range(2)], set()
    for _ in range(4):
        epoch = [number for loader in loaders for row in rows(loader) for number in row]
        assert len(set(epoch)) == len(epoch) == 12
        seen |= set(epoch)
    assert seen == set(range(13))


def test_an_accessor_loads_any_iterable_ahead():
    accessor = poptorch.AsynchronousDataAccessor(DataLoader(numbers(3)), buffer_size=2)
    assert len(accessor) == 3
    assert [rows(accessor) for _ in range(2)] == [[[0.0], [1.0], [2.0]]] * 2
    accessor.terminate()
    assert rows(accessor) == [[0.0], [1.0], [2.0]]
    pairs = poptorch.AsynchronousDataAccessor(DataLoader(numbers(5)), rebatched_size=2)
    assert len(pairs) == 2
    assert rows(pairs) == [[0.0, 1.0], [2.0, 3.0]]


def test_what_cannot_be_loaded_is_said_at_once():
    with pytest.raises(poptorch.Error, match="worker thread failed to start") as caught:
        poptorch.DataLoader(options_of(), Broken(), mode=poptorch.DataLoaderMode.Async)
    assert isinstance(caught.value.__cause__, KeyError)
    loader = poptorch.DataLoader(options_of(), numbers(3), mode=poptorch.DataLoaderMode.Async)
    with pytest.raises(poptorch.Error, match="already uses an AsynchronousDataAccessor"):
        poptorch.AsynchronousDataAccessor(loader)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"mode": poptorch.DataLoaderMode.AsyncRebatched, "rebatched_worker_size": 5}, "must be <= to the combined"),
        ({"mode": poptorch.DataLoaderMode.Async, "async_options": {"rebatched_size": 2}}, "use mode=AsyncRebatched"),
        ({"batch_sampler": [[0]], "shuffle": True}, "mutually exclusive"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, words):
    with pytest.raises(AssertionError, match=words):
        poptorch.DataLoader(options_of(), numbers(4), **arguments)
    with pytest.raises(AssertionError, match=r"poptorch\.Options\(\)"):
        poptorch.DataLoader({}, numbers(4))


def test_a_loader_feeds_a_model():
    class Total(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    options = options_of(2)
    loader = poptorch.DataLoader(options, numbers(8), batch_size=2, mode=poptorch.DataLoaderMode.Async)
    model = poptorch.inferenceModel(Total(), options)
    assert [model(batch).tolist() for batch in loader] == [[1.0, 5.0], [9.0, 13.0]]
