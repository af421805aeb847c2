"""Batches on their way to a device: the same values, ahead of time, converted on request."""

import itertools
import time

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.data import unpad
from popgeo.loader import DeviceFeed
from popgeo.loader.waiting import Waiting
from tests.support.fake_cuda import FakeCuda

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
    plain = next(iter(loader()))
    assert torch.equal(batch.x, plain.x.bfloat16())
    named = next(iter(loader(device="cpu", feature_dtype={"pos": torch.float16})))
    assert (named.pos.dtype, named.x.dtype) == (torch.float16, torch.float32)


def test_heterogeneous_batches_come_through_by_type():
    graph = HeteroData()
    graph["paper"].x, graph["author"].x = torch.randn(3, 2), torch.randn(2, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    sizes = FixedSizeOptions({"paper": 9, "author": 9}, {("author", "writes", "paper"): 8}, num_graphs=3)
    plain, fed = (
        next(iter(FixedSizeDataLoader([graph] * 2, fixed_size_options=sizes, **how))) for how in ({}, {"device": "cpu"})
    )
    for ours, theirs in zip(fed.stores, plain.stores, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs if isinstance(theirs[name], torch.Tensor))


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
