"""Batches on their way to a device: the same values, ahead of time, converted on request."""

import itertools
import time

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from popgeo import FixedSizeDataLoader, FixedSizeOptions, largest_graph
from popgeo.data import unpad
from popgeo.loader import DeviceFeed, device_feed
from popgeo.loader.waiting import Waiting
from popgeo.packing import Packs
from tests.support.count_copies import CountCopies
from tests.support.fake_cuda import FakeCuda, FakeEvent

GRAPHS = [
    Data(
        x=torch.randn(n, 3),
        pos=torch.randn(n, 3),
        edge_index=torch.randint(0, n, (2, 2 * n)),
        edge_attr=torch.randn(2 * n, 1),
        y=torch.randn(1),
        name=f"graph {n}",
    )
    for n in (2, 5, 3, 4, 2, 6)
]


def loader(**choices) -> FixedSizeDataLoader:
    return FixedSizeDataLoader(GRAPHS, num_nodes=12, num_edges=24, batch_size=3, shuffle=True, seed=0, **choices)


@pytest.mark.parametrize("choices", [{}, {"background": True, "num_buffers": 4}, {"options": 2}], ids=str)
def test_through_a_device_feed_every_batch_is_the_same(choices: dict):
    plain = list(loader(**{k: v for k, v in choices.items() if k != "num_buffers"}))
    fed = list(loader(device="cpu", batches_ahead=3, **choices))
    assert len(fed) == len(plain) > 0
    for ours, theirs in zip(fed, plain, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs:
            same = torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value
            assert same, name
        assert (ours.num_nodes, ours.num_edges, ours.num_graphs) == (
            theirs.num_nodes,
            theirs.num_edges,
            theirs.num_graphs,
        )


def test_a_batch_lies_in_one_block_of_its_own_and_can_be_taken_apart():
    first, second = itertools.islice(loader(device="cpu"), 2)
    memory = {tensor.untyped_storage().data_ptr() for _, tensor in first if isinstance(tensor, torch.Tensor)}
    assert len(memory) == 1
    assert second.x.untyped_storage().data_ptr() not in memory
    assert [graph.name for graph in unpad(first)] == list(first.name[:2])


def test_features_are_halved_and_targets_positions_and_indices_are_not():
    batch = next(iter(loader(device="cpu", feature_dtype=torch.bfloat16, index_dtype=torch.int32)))
    assert {name: batch[name].dtype for name in ("x", "edge_attr", "pos", "y", "edge_index")} == {
        "x": torch.bfloat16,
        "edge_attr": torch.bfloat16,
        "pos": torch.float32,
        "y": torch.float32,
        "edge_index": torch.int32,
    }
    converted = {"feature_dtype": torch.bfloat16, "index_dtype": torch.int32}
    for ours, plain in zip(loader(device="cpu", options=2, **converted), loader(options=2), strict=True):
        assert torch.equal(ours.x, plain.x.bfloat16())
        assert torch.equal(ours.edge_index, plain.edge_index.int())
    named = next(iter(loader(device="cpu", feature_dtype={"pos": torch.float16})))
    assert (named.pos.dtype, named.x.dtype) == (torch.float16, torch.float32)


def test_heterogeneous_batches_come_through_by_type():
    graph = HeteroData()
    graph["paper"].x, graph["author"].x = torch.randn(3, 2), torch.randn(2, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    sizes = FixedSizeOptions({"paper": 9, "author": 9}, {("author", "writes", "paper"): 8}, num_graphs=3)
    plain, fed = (FixedSizeDataLoader([graph] * 5, fixed_size_options=sizes, **how) for how in ({}, {"device": "cpu"}))
    for our_batch, their_batch in zip(fed, plain, strict=True):
        for ours, theirs in zip(our_batch.stores, their_batch.stores, strict=True):
            tensors = [name for name in theirs if isinstance(theirs[name], torch.Tensor)]
            assert tensors
            assert all(torch.equal(ours[name], theirs[name]) for name in tensors)


def test_a_batch_is_put_together_in_the_block_that_is_copied(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_feed, "in_background", lambda items, depth: items)  # copies are counted per thread
    fed = loader(device="cpu")
    with CountCopies() as first:
        num_batches = len(list(fed))
    with CountCopies() as second:
        list(fed)
    with CountCopies() as converted:
        list(loader(device="cpu", feature_dtype={"x": torch.float16}))
    num_tensors = sum(isinstance(value, torch.Tensor) for _, value in next(iter(loader())))
    assert first.number == num_batches + num_tensors  # only the first batch is in memory of its own
    assert second.number == num_batches
    assert converted.number == first.number + num_batches - 1


@pytest.mark.parametrize("choices", [{}, {"feature_dtype": torch.float16}, {"options": 2}], ids=str)
def test_a_block_is_not_written_to_before_its_copy_has_ended(choices: dict, monkeypatch: pytest.MonkeyPatch):
    def fed() -> FixedSizeDataLoader:
        ours = loader(device="cpu", **choices)
        ours._feed._cuda = FakeCuda()
        return ours

    ours = fed()
    for _ in range(3):
        list(ours)
    monkeypatch.setattr(FakeEvent, "synchronize", lambda event: None)
    ours = fed()
    with pytest.raises(AssertionError, match="before the host has waited"):
        [batch for _ in range(3) for batch in ours]


def test_passes_at_the_same_time_and_abandoned_passes_share_no_block():
    plain, fed = loader(), loader(device="cpu")
    for _ in range(3):
        for ours, theirs in zip(zip(fed, fed, strict=False), zip(plain, plain, strict=False), strict=True):
            assert [batch.x.tolist() for batch in ours] == [batch.x.tolist() for batch in theirs]
        assert torch.equal(next(iter(fed)).x, next(iter(plain)).x)
    assert device_feed.begin_pass(fed._feed) is not device_feed.begin_pass(fed._feed)


def test_a_batch_of_the_user_stays_as_it_was():
    batch = next(iter(loader()))
    x, wanted = batch.x, batch.x.half()
    first, second = DeviceFeed("cpu", feature_dtype=torch.float16).feed(iter([batch, batch]))
    assert batch.x is x
    assert torch.equal(first.x, wanted)
    assert torch.equal(second.x, wanted)


def test_a_batch_on_the_device_says_how_large_the_largest_graph_is():
    assert [largest_graph.noted([batch.batch]) for batch in loader(device="cpu")] == [6] * len(loader())


def test_the_plan_of_an_epoch_counts_as_waiting():
    def plan_slowly(sizes, budget, *, generator):
        time.sleep(0.05)
        return Packs.from_lists([[i] for i in range(len(sizes))])

    slow = FixedSizeDataLoader(GRAPHS, num_nodes=12, num_edges=24, batch_size=3, fixed_size_strategy=plan_slowly)
    next(iter(slow))
    assert slow.waiting.seconds >= 0.05


@pytest.mark.parametrize("strategy", ["PadToMax", "Window", "Optimal", "function"])
def test_epochs_in_any_order_are_those_of_a_loader_without_a_device(strategy: str):
    def of(choice, **choices) -> FixedSizeDataLoader:
        return loader(fixed_size_strategy=choice, **choices)

    width = [1]

    def together(sizes, budget, *, generator) -> Packs:
        return Packs.from_lists([[*range(i, min(i + width[0], len(sizes)))] for i in range(0, len(sizes), width[0])])

    choice = together if strategy == "function" else strategy
    plain, fed = of(choice), of(choice, device="cpu")
    for epoch in (None, None, 1, 5, None, 6):
        for one in (plain, fed):
            if epoch is not None:
                one.set_epoch(epoch)
        assert len(plain) == len(fed)
        ours, theirs = ([batch.y.tolist() for batch in one] for one in (fed, plain))
        assert ours == theirs
        assert plain.state_dict() == fed.state_dict()
        width[0] = 3 - width[0]  # a function may read what changes between epochs


def test_one_copy_a_batch_on_a_stream_of_its_own_and_the_step_waits_for_it():
    cuda = FakeCuda()
    feed = DeviceFeed("cpu", cuda=cuda)
    list(feed.feed(iter(list(loader())[:3])))
    # Events 1 and 2 belong to the two blocks; each copy then has one of its own.
    from_host = [line for line in cuda.log if line.startswith("host") or "after" in line]
    assert from_host == [
        "host waits for event 1", "event 1 after stream 1", "event 3 after stream 1",
        "host waits for event 2", "event 2 after stream 1", "event 4 after stream 1",
        "host waits for event 1", "event 1 after stream 1", "event 5 after stream 1",
    ]  # fmt: skip
    assert [line for line in cuda.log if line.startswith("main")] == [f"main waits for event {n}" for n in (3, 4, 5)]


def test_a_state_counts_what_was_given_not_what_was_made_ahead():
    ahead = loader(device="cpu", batches_ahead=2)
    iterator = iter(ahead)
    next(iterator)
    time.sleep(0.05)
    state = ahead.state_dict()
    assert state["position"] == 1
    resumed = loader(device="cpu")
    resumed.load_state_dict(state)
    for ours, theirs in zip(resumed, iterator, strict=True):
        assert torch.equal(ours.x, theirs.x)


def test_an_error_of_the_feed_reaches_the_loop():
    with pytest.raises(ValueError, match=r"feature_dtype names \['z'\], which batches do not have"):
        list(loader(device="cpu", feature_dtype={"z": torch.float16}))
    with pytest.raises(ValueError, match=r"asks for edge_index as torch.float16, but it is torch.int64"):
        list(loader(device="cpu", feature_dtype={"edge_index": torch.float16}))


def test_waiting_is_what_the_loader_takes_and_not_what_the_step_does():
    def slow():
        for i in range(3):
            time.sleep(0.02)
            yield i

    waiting = Waiting()
    for _ in waiting.of(slow()):
        time.sleep(0.01)
    assert waiting.items == 3
    assert waiting.seconds >= 0.06
    assert waiting.between >= 0.03
    batches = loader()
    list(batches)
    assert batches.waiting.items == len(batches)
    assert f"for {len(batches)} items" in str(batches.waiting)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"device": "gpu"}, r"device is 'gpu'; pass 'cpu', 'cuda'"),
        ({"device": "meta"}, r"device is meta; batches are fed to"),
        ({"device": "cuda:99"}, r"torch finds \d+ CUDA devices. Pass 'cpu'"),
        ({"device": "cpu", "batches_ahead": 0}, r"batches_ahead is 0"),
        ({"feature_dtype": torch.float16}, r"Pass device="),
        ({"device": "cpu", "feature_dtype": torch.int8}, r"feature_dtype of x is torch.int8"),
        ({"output": "jax"}, r"output is 'jax'; it is 'pyg' or 'numpy'"),
        ({"output": "numpy", "device": "cuda"}, r"NumPy knows the processor's memory only"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_at_the_door(choices: dict, message: str):
    with pytest.raises(ValueError, match=message):
        loader(**choices)
