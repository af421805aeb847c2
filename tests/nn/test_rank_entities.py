"""Claims about ranks: filtered, right for ties, and the same in blocks of any size."""

import pytest
import torch
from torch import Tensor

from popgeo.nn import ComplEx, DistMult, KnownTriples, Ranks, TransE, rank_entities
from popgeo.nn.models.knowledge_graph import Dot


def scores_of(values: list[float]) -> DistMult:
    """A model whose triples (head 0, relation 0, tail) have these scores."""
    model = DistMult(len(values), 1, 1)
    with torch.no_grad():
        model.rel_emb.weight.fill_(1.0)
        model.node_emb.weight.copy_(torch.tensor(values).unsqueeze(1))
        model.node_emb.weight[0] = 1.0
    return model


def known(triples: list[list[int]], num_nodes: int, side: str = "tail") -> KnownTriples:
    return KnownTriples(torch.tensor(triples, dtype=torch.int64).view(-1, 3), num_nodes, 1, side)


def test_known_answers_do_not_count_and_ties_count_half():
    model = scores_of([1.0, 5.0, 3.0, 3.0, 4.0, 3.0])  # entity 0 scores 1
    triple = torch.tensor([[0, 0, 2]])
    raw = rank_entities(model, triple, known([], 6))
    assert (raw.optimistic.item(), raw.pessimistic.item(), raw.realistic.item()) == (3, 5, 4.0)
    filtered = rank_entities(model, triple, known([[0, 0, 1], [0, 0, 3], [0, 0, 2]], 6))
    assert (filtered.optimistic.item(), filtered.pessimistic.item()) == (2, 3)
    assert (filtered.mrr(), filtered.hits(2), filtered.hits(3), filtered.mean_rank()) == (1 / 2.5, 0.0, 1.0, 2.5)


@pytest.mark.parametrize("kind", [DistMult, ComplEx, TransE])
def test_a_model_that_scores_all_alike_ranks_as_chance_does(kind: type):
    model = kind(101, 1, 24)
    with torch.no_grad():
        for name, table in model.entity_tables.items():
            table.copy_(torch.linspace(-1, 1, 24) if name == "node_emb.weight" else torch.full((24,), 0.3))
    triples = torch.tensor([[3, 0, 100], [100, 0, 0], [7, 0, 50]])
    ranks = rank_entities(model, triples, known([], 101), block_size=33)
    assert ranks.realistic.tolist() == [51.0] * 3


def plain_ranks(model: ComplEx, triples: Tensor, everything: Tensor, side: str) -> list[float]:
    """One triple and one candidate at a time."""
    found, all_known = [], {tuple(row) for row in everything.tolist()}
    for head, relation, tail in triples.tolist():
        true, above, level = model(*torch.tensor([head, relation, tail])), 0, 0
        for entity in range(model.num_nodes):
            triple = (head, relation, entity) if side == "tail" else (entity, relation, tail)
            if triple != (head, relation, tail) and triple not in all_known:
                score = model(*torch.tensor(triple))
                above, level = above + bool(score > true), level + bool(score == true)
        found.append(1 + above + level / 2)
    return found


@pytest.mark.parametrize("side", ["head", "tail"])
def test_ranks_in_blocks_of_any_size_are_those_of_one_triple_after_the_other(side: str, generator: torch.Generator):
    torch.manual_seed(0)
    model = ComplEx(13, 2, 4).double()
    everything = torch.stack([torch.randint(n, (60,), generator=generator) for n in (13, 2, 13)], dim=1)
    expected = plain_ranks(model, everything[:12], everything, side)
    filter_ = KnownTriples(everything, 13, 2, side)
    for batch_size, block_size in ((256, 8192), (5, 4), (1, 1)):
        ranks = rank_entities(model, everything[:12], filter_, batch_size=batch_size, block_size=block_size)
        assert ranks.realistic.tolist() == expected


def test_ranks_of_two_sides_are_joined():
    one, two = (Ranks(optimistic=torch.tensor([n]), pessimistic=torch.tensor([n])) for n in (1, 4))
    assert Ranks.join(one, two).mrr() == (1 + 1 / 4) / 2


def test_no_memory_grows_with_the_number_of_entities(monkeypatch: pytest.MonkeyPatch):
    model, shapes = DistMult(500, 1, 2), []
    score = Dot.of_pairs
    monkeypatch.setattr(Dot, "of_pairs", lambda *args: shapes.append(args[2].shape[0]) or score(*args))
    rank_entities(model, torch.tensor([[0, 0, 1], [2, 0, 499]]), known([], 500), block_size=64)
    assert shapes == [64] * 7 + [52]


def test_scores_that_have_no_rank_and_triples_that_do_not_fit_are_refused():
    model = scores_of([1.0, torch.nan, 2.0])
    with pytest.raises(ValueError, match="A score is NaN or infinite"):
        rank_entities(model, torch.tensor([[0, 0, 2]]), known([], 3))
    with pytest.raises(ValueError, match="out of range: there are 3 entities and 1 relations"):
        rank_entities(model, torch.tensor([[0, 1, 2]]), known([], 3))
    with pytest.raises(ValueError, match=r"they need int64 \[num_triples, 3\]"):
        KnownTriples(torch.zeros(3, 2), 3, 1, "tail")
