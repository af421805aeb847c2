"""Claims about ranks: filtered, fair to ties, and the same for blocks of any size."""

import pytest
import torch
from torch import Tensor

from popgeo.nn import ComplEx, DistMult, KnownTriples, Ranks, TransE, rank_entities
from popgeo.nn.models.knowledge_graph import Dot


def scores_of(values: list[float]) -> DistMult:
    """Return a model with these scores for the triples (head 0, relation 0, tail)."""
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
    """Rank one triple and one candidate at a time."""
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


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize(("num_nodes", "num_relations"), [(91_230_610, 1_387), (2**40, 2**40), (2**62, 3), (7, 2)])
def test_known_triples_are_found_however_many_entities_there_are(num_nodes, num_relations, side):
    generator = torch.Generator().manual_seed(0)
    counts = (num_nodes, num_relations, num_nodes)
    triples = torch.stack([torch.randint(n, (300,), generator=generator) for n in counts], 1)
    triples[100:200, :2], triples[200:, 1:] = triples[:100, :2], triples[:100, 1:]  # several answers to a query
    fixed, asked = (0, 2) if side == "tail" else (2, 0)
    answers: dict[tuple[int, int], list[int]] = {}
    for row in triples.tolist():
        answers.setdefault((row[fixed], row[1]), []).append(row[asked])
    queries = torch.cat([triples, (triples + 1) % torch.tensor(counts)])
    query, entity = KnownTriples(triples, num_nodes, num_relations, side).of(queries[:, fixed], queries[:, 1])
    found: dict[int, list[int]] = {}
    for number, one in zip(query.tolist(), entity.tolist(), strict=True):
        found.setdefault(number, []).append(one)
    for number, row in enumerate(queries.tolist()):
        assert found.get(number, []) == sorted(answers.get((row[fixed], row[1]), []))


def test_known_triples_of_other_graphs_and_numbers_are_refused():
    triples, model = torch.tensor([[0, 0, 1], [1, 0, 2]]), DistMult(3, 2, 2)
    for num_nodes, num_relations in ((3, 1), (4, 2)):
        with pytest.raises(ValueError, match="Make KnownTriples of the model's graph"):
            rank_entities(model, triples, KnownTriples(triples, num_nodes, num_relations, "tail"))
    filter_ = KnownTriples(triples, 3, 1, "tail")
    assert filter_.of(torch.tensor([1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))[1].tolist() == [2]
    with pytest.raises(ValueError, match=r"relation\[0\] is 1; allowed are 0 to 0"):
        filter_.of(torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"known\[0\] is -1"):
        filter_.of(torch.tensor([-1]), torch.tensor([0]))
