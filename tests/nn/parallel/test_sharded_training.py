"""Claims about training in shards: the losses of one shard, one process and plain scoring."""

import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing import assert_close

from popgeo.ipu import Options, training_model
from popgeo.loader import TripleBatch, TripleLoader
from popgeo.nn import (
    ComplEx,
    DistMult,
    KnowledgeGraphModel,
    LogSigmoidLoss,
    RotatE,
    ShardedTraining,
    SoftmaxLoss,
    TransE,
    TripleEnd,
)
from popgeo.ops.shard_exchange import exchange_shards
from popgeo.sampling import EntityShards
from popgeo.testing import check_static_capture
from tests.conftest import REPOSITORY
from tests.support import quick_python, sharded_training
from tests.support.sharded_training import SHARDS, make_triples

MODELS = {"TransE": TransE, "DistMult": DistMult, "ComplEx": ComplEx, "RotatE": RotatE}
LOSSES = {"log-sigmoid": LogSigmoidLoss(), "softmax": SoftmaxLoss()}


def make_batch(shards: EntityShards = SHARDS, num_negatives: int | None = 3) -> TripleBatch:
    batch = next(iter(TripleLoader(make_triples(), shards, slots=4, num_negatives=num_negatives)))
    return batch._replace(weight=batch.weight.double())


def in_shards(whole: KnowledgeGraphModel, shards: EntityShards) -> KnowledgeGraphModel:
    part = type(whole)(shards.num_shards * shards.num_rows, whole.num_relations, whole.hidden_channels).double()
    tables = {name: shards.spread(table.detach()).flatten(0, 1) for name, table in whole.entity_tables.items()}
    part.load_state_dict({**whole.state_dict(), **tables})
    return part


def plain_loss(model: KnowledgeGraphModel, batch: TripleBatch, loss: LogSigmoidLoss | SoftmaxLoss, n3: float) -> Tensor:
    """Compute the loss of each shard's triples against its received entities, by their numbers and without shards."""
    total = torch.zeros((), dtype=torch.float64)
    for shard in range(SHARDS.num_shards):
        mask = batch.triples_mask[shard]
        head, relation, tail = (t[shard][mask] for t in (batch.head_entity, batch.relation, batch.tail_entity))
        others = batch.negative_entity[shard].flatten()
        others = others[others >= 0]
        for side in TripleEnd:
            known, asked = (head, tail) if side is TripleEnd.TAIL else (tail, head)
            scores = model.score_candidates(known, relation, side, others)
            counts = others != asked.unsqueeze(1)
            total = total + loss(model(head, relation, tail), scores, counts) * len(head) / 2
        rows = model.entities(head), model.relations(relation), model.entities(tail)
        total = total + n3 * sum(model.cubes(part).sum() for part in rows)
    return total / batch.triples_mask.sum()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_in_shards_are_those_without(name: str, loss: str):
    torch.manual_seed(0)
    whole = MODELS[name](SHARDS.num_entities, 3, 4).double()
    part, batch = in_shards(whole, SHARDS), make_batch(num_negatives=None if loss == "softmax" else 3)
    assert not batch.triples_mask.all()
    training = ShardedTraining(part, LOSSES[loss], num_shards=SHARDS.num_shards, n3=0.3)
    found, expected = training(*batch), plain_loss(whole, batch, LOSSES[loss], n3=0.3)
    assert_close(found, expected)
    found.backward()
    expected.backward()
    for (key, mine), theirs in zip(part.named_parameters(), whole.parameters(), strict=True):
        gradient = SHARDS.collect(mine.grad) if key in part.entity_tables else mine.grad
        assert_close(gradient, theirs.grad)


@pytest.mark.parametrize(("name", "loss"), list(zip(MODELS, [*LOSSES, *LOSSES], strict=True)))
def test_a_compiled_training_step_is_static_and_equals_eager(name: str, loss: str):
    torch.manual_seed(0)
    model = MODELS[name](SHARDS.num_shards * SHARDS.num_rows, 3, 4).double()
    training = ShardedTraining(model, LOSSES[loss], num_shards=SHARDS.num_shards, n3=0.1)
    check_static_capture(training, *make_batch())


def test_empty_slots_and_what_stands_in_them_change_nothing():
    torch.manual_seed(0)
    part, batch = ComplEx(SHARDS.num_shards * SHARDS.num_rows, 3, 4).double(), make_batch()
    training, empty = ShardedTraining(part, SoftmaxLoss(), num_shards=SHARDS.num_shards), ~batch.triples_mask
    there = empty.transpose(0, 1)  # tails stand if they are looked up
    changed = batch._replace(
        head=torch.where(empty, 1, batch.head),
        relation=torch.where(empty, 2, batch.relation),
        tail=torch.where(there, 3, batch.tail),
    )
    assert empty.any()
    results = []
    for one in (batch, changed):
        loss = training(*one)
        results.append([loss, *torch.autograd.grad(loss, list(part.parameters()))])
    assert_close(*results)


def test_two_processes_train_like_one(tmp_path: Path):
    command = [*quick_python.command(), "-m", "tests.support.sharded_training", str(tmp_path), "1"]
    other = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        sharded_training.join(tmp_path, 0)
        mine = sharded_training.train(0, 2)
        assert other.wait(timeout=120) == 0
    finally:
        other.kill()
        if dist.is_initialized():
            dist.destroy_process_group()
    parts, alone = [mine, torch.load(tmp_path / "1.pt", weights_only=True)], sharded_training.train()
    assert_close((parts[0]["losses"] + parts[1]["losses"]) / 2, alone["losses"], rtol=1e-9, atol=1e-9)
    for name, table in alone.items():
        if name.startswith("node_emb"):
            assert_close(torch.cat([part[name] for part in parts]), table, rtol=1e-9, atol=1e-9)
        elif name != "losses":
            assert_close(parts[0][name], table, rtol=1e-9, atol=1e-9)
            assert_close(parts[1][name], table, rtol=1e-9, atol=1e-9)


def test_the_report_of_one_of_two_processes_exchanges_rows_and_adds_up_relations_alone():
    model = ShardedTraining(ComplEx(2 * SHARDS.num_rows, 3, 4), SoftmaxLoss(), num_shards=4, num_local=2)
    options = Options(replication_factor=2)
    step = training_model(model, options, torch.optim.Adam(model.parameters()))
    half = TripleLoader(make_triples(), SHARDS, slots=4, num_negatives=3, seed=0, rank=0, world_size=2)
    halves = [torch.cat([tensor, tensor]) for tensor in next(iter(half))]  # for both replicas of this process
    table = step.compile(*halves).report.to_frame()
    exchanged = table[table["target"] == "popgeo.all_to_all.default"]
    assert len(exchanged) == 2  # tails and negatives together, there and back
    assert (exchanged["exchange"] > 0).all()
    (added_up,) = table[table["target"] == "collective.all_reduce.default"]["shapes"]
    assert added_up == "[24]"  # real and imaginary parts of three relations
    with pytest.raises(ValueError, match=r"The shards lie in 2 processes, but torch\.distributed has 1"):
        step(*halves)


def test_numbers_of_shards_that_do_not_fit_are_refused():
    model = DistMult(6, 2, 4)
    with pytest.raises(ValueError, match="There are 4 shards, 3 of them here"):
        ShardedTraining(model, SoftmaxLoss(), num_shards=4, num_local=3)
    with pytest.raises(ValueError, match="sides is empty"):
        ShardedTraining(model, SoftmaxLoss(), sides=())
    with pytest.raises(ValueError, match="2 local shards of 3"):
        exchange_shards(torch.zeros(2, 3, 1))
