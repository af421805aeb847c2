"""Claims about TGN: memory, last neighbors and embedding equal PyG's event by event, with any values in padding."""

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import TemporalData
from torch_geometric.nn import TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

from popgeo import FixedSizeEventLoader, Options, inference_model, training_model
from popgeo.nn import TGN, binary_cross_entropy
from popgeo.nn.models.event_ends import EventEnds, LastNeighbors
from popgeo.nn.models.node_memory import NodeMemory
from popgeo.ops import scatter_max
from popgeo.testing import check_static_capture
from tests.support.denormals import DenormalsMade

NODES, MSG, CHANNELS, SIZE, BATCH = 12, 3, 8, 4, 10


def make_events(num_events: int = 57, *, is_bipartite: bool = False) -> TemporalData:
    """Return random events at different times, of few nodes, so that a batch has several events per node, and loops."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, num_events), generator=generator)
    if is_bipartite:
        src, dst = src // 2, NODES // 2 + dst // 2
    t = torch.randint(1, 50, (num_events,), generator=generator).cumsum(0)
    return TemporalData(src, dst, t, torch.randn(num_events, MSG, generator=generator))


def batches(events: TemporalData, batch_size: int = BATCH) -> list[TemporalData]:
    return list(FixedSizeEventLoader(events, batch_size, seed=0, negatives=(0, NODES)))


def ends_of(batch: TemporalData) -> EventEnds:
    return EventEnds.of(batch.src, batch.dst, batch.t, batch.msg, batch.events_mask)


def real(batch: TemporalData) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the real events of a batch as PyG's classes take them, without empty slots."""
    return tuple(column[batch.events_mask] for column in (batch.src, batch.dst, batch.t, batch.msg))


def make_model(dtype: torch.dtype = torch.float64, **kwargs: object) -> TGN:
    torch.manual_seed(0)
    return TGN(NODES, MSG, CHANNELS, SIZE, **kwargs).to(dtype)


class LastOfTorchScatter(LastAggregator):
    """PyG's aggregator with the behavior of torch_scatter: a node without messages gets zeros.

    Without torch_scatter `scatter_argmax` marks a missing message by the number of the last node instead of the number
    of messages, and such a node takes in a message of a different node.
    """

    def forward(self, msg: Tensor, index: Tensor, t: Tensor, dim_size: int) -> Tensor:
        _, argmax = scatter_max(t, index, dim=0, dim_size=dim_size)
        return torch.cat([msg, msg.new_zeros(1, msg.size(1))])[argmax]


class PygTGN(nn.Module):
    """TGN as in PyG's example."""

    def __init__(self, model: TGN) -> None:
        super().__init__()
        self.memory = TGNMemory(
            NODES, MSG, CHANNELS, CHANNELS, IdentityMessage(MSG, CHANNELS, CHANNELS), LastOfTorchScatter()
        ).double()
        self.neighbors = LastNeighborLoader(NODES, SIZE)
        self.conv = TransformerConv(CHANNELS, CHANNELS // 2, heads=2, edge_dim=MSG + CHANNELS).double()
        self.predictor = copy.deepcopy(model.predictor)
        self.memory.reset_state()  # its stores have no type of their own until then
        own = model.memory.state_dict()
        self.memory.load_state_dict({name: own.get(name, tensor) for name, tensor in self.memory.state_dict().items()})
        self.conv.load_state_dict(model.embedding.conv.state_dict())

    def forward(self, batch: TemporalData, seen: TemporalData) -> tuple[Tensor, Tensor]:
        src, dst, t, msg = real(batch)
        wrong = batch.neg_dst[batch.events_mask]
        n_id, edge_index, e_id = self.neighbors(torch.cat([src, dst, wrong]).unique())
        place = torch.full((NODES,), -1)
        place[n_id] = torch.arange(len(n_id))
        z, last_update = self.memory(n_id)
        since = last_update[edge_index[0]] - seen.t[e_id]
        attributes = torch.cat([self.memory.time_enc(since.to(z.dtype)), seen.msg[e_id].to(z.dtype)], dim=1)
        z = self.conv(z, edge_index, attributes)
        met, not_met = (self.predictor(z[place[src]], z[place[other]]) for other in (dst, wrong))
        self.memory.update_state(src, dst, t, msg.to(z.dtype))
        self.neighbors.insert(src, dst)
        return met, not_met


def call(model: nn.Module, batch: TemporalData) -> tuple[Tensor, Tensor]:
    dtype = next(model.parameters()).dtype
    mask = batch.events_mask
    return model(batch.src, batch.dst, batch.t, batch.msg.to(dtype), neg_dst=batch.neg_dst, events_mask=mask)


def test_a_batch_of_three_events_is_what_it_is_by_hand():
    src, dst = torch.tensor([3, 3, 2, 9]), torch.tensor([1, 2, 2, 9])
    mask = torch.tensor([True, True, True, False])
    ends = EventEnds.of(src, dst, torch.arange(4), torch.zeros(4, 1), mask)
    assert ends.node.tolist() == [3, 1, 3, 2, 2, 2, 3, 3]
    assert ends.other.tolist() == [1, 3, 2, 3, 2, 2, 9, 9]
    assert ends.last.tolist() == [2, 1, 2, 5, 5, 5, 2, 2]
    assert ends.later.tolist()[:6] == [1, 0, 0, 2, 1, 0]
    assert ends.earlier.tolist()[:6] == [0, 0, 1, 0, 1, 2]


def test_a_batch_of_padding_alone_changes_no_state():
    model = make_model()
    for batch in batches(make_events(20)):
        call(model, batch)
    before = copy.deepcopy(model.state_dict())
    nothing = torch.zeros(BATCH, dtype=torch.bool)
    garbage = torch.full((BATCH,), 10**6)
    model(garbage, garbage, garbage, torch.full((BATCH, MSG), torch.nan), neg_dst=garbage, events_mask=nothing)
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 4, 30])
def test_the_last_neighbors_are_the_last_after_every_batch(size: int):
    events = make_events()
    events.msg = torch.arange(len(events.src)).float().unsqueeze(1)  # the number of the event
    own = LastNeighbors(NODES, size, 1)
    expected: list[deque[tuple[int, int, int]]] = [deque(maxlen=size) for _ in range(NODES)]
    for batch in batches(events):
        own.insert(ends_of(batch))
        for src, dst, t, number in zip(*(column.flatten().tolist() for column in real(batch)), strict=True):
            expected[src].append((dst, t, number))
            expected[dst].append((src, t, number))
        found = own(torch.arange(NODES))
        for node in range(NODES):
            columns = (column[node][found.mask[node]].flatten().tolist() for column in (found.node, found.t, found.msg))
            assert sorted(zip(*columns, strict=True)) == sorted(expected[node])


@pytest.mark.parametrize("size", [4, 30])
def test_the_last_neighbors_are_pygs_after_every_batch(size: int):
    """Use batches of four: if a node has more than `size` events in a batch, PyG's loader keeps arbitrary ones."""
    events = make_events(is_bipartite=size == 4)
    events.msg = torch.arange(len(events.src)).float().unsqueeze(1)  # PyG keeps the number of the event
    own, peer = LastNeighbors(NODES, size, 1), LastNeighborLoader(NODES, size)
    for batch in batches(events, 4):
        own.insert(ends_of(batch))
        src, dst, _, _ = real(batch)
        peer.insert(src, dst)
        found = own(torch.arange(NODES))
        for node in range(NODES):
            filled = peer.e_id[node] >= 0
            theirs = zip(peer.e_id[node][filled].tolist(), peer.neighbors[node][filled].tolist(), strict=True)
            mine = (column[node][found.mask[node]].flatten().tolist() for column in (found.msg, found.node))
            assert sorted(zip(*mine, strict=True)) == sorted(theirs)


def test_the_memory_is_pygs_after_every_batch_of_training_and_of_evaluation():
    events, model = make_events(), make_model()
    own, peer = model.memory, PygTGN(model).memory
    for number, batch in enumerate(batches(events)):
        if number == 3:
            own.eval()
            peer.eval()
        src, dst, t, msg = real(batch)
        touched = torch.cat([src, dst]).unique()
        assert_close(own(touched), peer(touched))
        own.update(EventEnds.of(batch.src, batch.dst, batch.t, batch.msg.double(), batch.events_mask))
        peer.update_state(src, dst, t, msg.double())
        assert_close(own.memory, peer.memory)
        assert_close(own.last_update, peer.last_update)


def test_predictions_and_gradients_are_pygs_over_a_stream():
    events, model = make_events(is_bipartite=True), make_model(dropout=0.0, since="last update")
    peer = PygTGN(model)
    for batch in batches(events, 4):  # no more events of a node than it has slots
        own, others = call(model, batch), peer(batch, events)
        assert_close(torch.stack(own)[:, batch.events_mask], torch.stack(others))
        names = ("memory.gru.weight_ih", "memory.time_enc.lin.weight", "predictor.lin_dst.weight")
        gradients = [
            torch.autograd.grad(sum(logits), [m.get_parameter(name) for name in names], allow_unused=True)
            for m, logits in ((model, [one.square().sum() for one in own]), (peer, [o.square().sum() for o in others]))
        ]
        assert_close(*([torch.zeros(1).double() if g is None else g for g in of_one] for of_one in gradients))
        peer.memory.detach()


def test_weights_and_memory_of_pyg_load_and_no_message_waits():
    model = make_model()
    peer = PygTGN(model)
    for batch in batches(make_events(30)):
        peer.memory.update_state(*(c.double() if c.is_floating_point() else c for c in real(batch)))
    memory = NodeMemory(NODES, MSG, CHANNELS, CHANNELS).double()
    memory.load_state_dict(peer.memory.state_dict())
    assert torch.equal(memory.memory, peer.memory.memory)
    assert torch.equal(memory.gru.weight_hh, peer.memory.gru.weight_hh)
    assert not memory.has_message.any()


def predictions(model: TGN, stream: list[TemporalData]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in stream:
        yield call(model, batch)


def with_padding(batch: TemporalData, free: int, garbage: float) -> TemporalData:
    columns = {}
    for name, values in batch.to_dict().items():
        filler = garbage if values.is_floating_point() else 10**6 if values.dtype == torch.int64 else False
        columns[name] = torch.cat([values, values.new_full((free, *values.shape[1:]), filler)])
    return TemporalData(**columns)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_padding_changes_no_prediction_gradient_or_state_whatever_stands_in_it(training: bool):
    stream = batches(make_events(30))
    expected: list[Tensor] | None = None
    for free, garbage in ((0, 0.0), (1, 3.0), (7, torch.nan), (40, torch.inf)):
        model = make_model(dropout=0.0).train(training)
        found = []
        for batch in stream:
            padded = with_padding(batch, free, garbage)
            logits = call(model, padded)
            loss = sum(binary_cross_entropy(one, torch.ones_like(one), padded.events_mask) for one in logits)
            found += [one[:BATCH] for one in logits]
            found += torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
        found += list(model.buffers())
        expected = found if expected is None else expected
        assert_close(found, expected)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_no_event_tells_anything_to_a_prediction_of_its_own_batch(training: bool):
    stream = batches(make_events(30))
    model = make_model(dropout=0.0).train(training)
    *_, expected = predictions(model, stream)
    other = copy.copy(stream[-1])
    other.msg, other.t = 9 * other.msg, torch.cat([other.t[:1], other.t[1:] + 1000])
    other.src = torch.cat([other.src[:1], other.src[1:].flip(0)])
    other.dst = torch.cat([other.dst[:1], other.dst[1:].flip(0)])
    model = make_model(dropout=0.0).train(training)
    *_, (met, _) = predictions(model, [*stream[:-1], other])
    assert_close(met[0], expected[0][0])
    assert not torch.allclose(met[1:], expected[0][1:])


def test_of_many_nodes_only_those_touched_are_computed_and_the_result_is_the_same():
    events = make_events(30)
    few, many = make_model(dropout=0.0), make_model(dropout=0.0)
    large = TGN(2000, MSG, CHANNELS, SIZE, dropout=0.0).double()
    large.load_state_dict({**large.state_dict(), **dict(many.named_parameters())})
    for batch in batches(events):
        assert_close(call(large, batch), call(few, batch))


class Training(nn.Module):
    def __init__(self, model: TGN) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, src: Tensor, dst: Tensor, t: Tensor, msg: Tensor, neg_dst: Tensor, events_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        met, not_met = self.model(src, dst, t, msg, neg_dst=neg_dst, events_mask=events_mask)
        logits, label = torch.cat([met, not_met]), torch.cat([torch.ones_like(met), torch.zeros_like(not_met)])
        return met, not_met, binary_cross_entropy(logits, label, events_mask.repeat(2))


def inputs(batch: TemporalData, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return batch.src, batch.dst, batch.t, batch.msg.to(dtype), batch.neg_dst, batch.events_mask


def test_a_compiled_step_is_static_and_equals_eager_with_its_state():
    model = make_model(dropout=0.0)
    stream = batches(make_events())
    for batch in stream[:3]:
        call(model, batch)
    check_static_capture(Training(model), *inputs(stream[3]))


def test_compiled_training_and_evaluation_share_state_and_are_eager_ones_over_a_stream():
    """Run two epochs, the second from `reset_state`; each trains on four batches and evaluates on two."""
    stream = batches(make_events(60))
    eager, compiled = Training(make_model(dropout=0.0)), Training(make_model(dropout=0.0))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    options = Options(device_iterations=2, output_mode="all")
    step = training_model(compiled, options, torch.optim.SGD(compiled.parameters(), lr=0.01))
    answer = inference_model(compiled.eval())
    for _ in range(2):
        for one in (eager, compiled):
            one.train()
            one.model.reset_state()
        expected = []
        for batch in stream[:4]:
            *logits, loss = eager(*inputs(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(torch.stack(logits).detach())
        pairs = [zip(inputs(a), inputs(b), strict=True) for a, b in (stream[:2], stream[2:4])]
        found = [step(*(torch.cat(both) for both in pair)) for pair in pairs]
        assert_close(torch.cat([torch.stack(made[:2]) for made in found], dim=1), torch.cat(expected, dim=1))
        eager.eval()
        compiled.eval()
        for batch in stream[4:]:
            assert_close(answer(*inputs(batch)), tuple(part.detach() for part in eager(*inputs(batch))))
        assert_close(dict(compiled.state_dict()), dict(eager.state_dict()))


@dataclass
class Wrong:
    """A wrong call, and the name that its error must contain."""

    change: dict[str, Tensor]
    named: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong({"dst": torch.zeros(3, dtype=torch.int64)}, "dst"),
        Wrong({"msg": torch.zeros(BATCH, MSG + 1)}, "msg"),
        Wrong({"events_mask": torch.ones(1, dtype=torch.bool)}, "events_mask"),
    ],
    ids=lambda wrong: wrong.named,
)
def test_shapes_that_do_not_fit_are_refused_by_name(wrong: Wrong):
    batch = batches(make_events(10))[0]
    for name, value in wrong.change.items():
        setattr(batch, name, value)
    with pytest.raises(ValueError, match=wrong.named):
        call(make_model(torch.float32), batch)


def test_no_activation_gradient_or_state_is_denormal(native: str):
    model = make_model(torch.float32, learn_nodes=True)
    with DenormalsMade() as made:
        for batch in batches(make_events(30)):
            loss = sum(one.square().sum() for one in call(model, batch))
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert made.num_results > 50
    assert made.found == []


def test_attention_tells_a_recent_neighbor_from_an_old_one_only_if_it_knows_what_time_it_is():
    events = batches(make_events(30))
    for since, knows in (("now", True), ("last update", False)):
        model = make_model(dropout=0.0, since=since)
        for batch in events:
            call(model, batch)
        node, t = torch.arange(NODES), torch.full((NODES,), 2000)
        later = model.embed(node, t + 500)
        assert torch.allclose(model.embed(node, t), later) != knows
    with pytest.raises(ValueError, match="'then'"):
        make_model(since="then")
