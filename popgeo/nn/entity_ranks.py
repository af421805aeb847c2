"""Filtered ranking of a triple's true entity among all entities, in bounded memory."""

import copy

import torch
from torch import Tensor

from popgeo.nn.models.knowledge_graph import KnowledgeGraphModel, TripleEnd
from popgeo.nn.ranks import Ranks
from popgeo.ops.refusals import check_least, refuse_index


class KnownTriples:
    """The known answers of each query, which are left out when another answer is ranked.

    Args:
        triples: All known triples, of training, validation and test. int64 [num_triples, 3]
        num_nodes: Entities.
        num_relations: Relations.
        side: End of the triple that queries ask for.

    Raises:
        ValueError: a triple is out of range.

    Example:
        >>> known = KnownTriples(torch.tensor([[0, 0, 1], [0, 0, 2], [1, 0, 2]]), 3, 1, side="tail")
        >>> query, entity = known.of(torch.tensor([1, 0]), torch.tensor([0, 0]))
        >>> query.tolist(), entity.tolist()
        ([0, 1, 1], [2, 1, 2])
    """

    def __init__(self, triples: Tensor, num_nodes: int, num_relations: int, side: TripleEnd | str) -> None:
        _check(triples, num_nodes, num_relations)
        self.side, self.num_nodes, self.num_relations = TripleEnd(side), num_nodes, num_relations
        known, answer = (0, 2) if self.side is TripleEnd.TAIL else (2, 0)
        # Pairs are numbered by the entities and relations that occur; 64 bits always hold the product of these numbers.
        (self._entities, entity), (self._relations, relation) = (
            triples[:, column].unique(return_inverse=True) for column in (known, 1)
        )
        order = triples[:, answer].argsort(stable=True)
        key = (entity * len(self._relations) + relation)[order]
        self._key, by_key = key.sort(stable=True)
        self._answer = triples[order[by_key], answer]

    def of(self, known: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of queries with known answers, and these answers.

        Args:
            known: Given entity of each query. [num_queries]
            relation: Relation of each query. [num_queries]

        Returns:
            The query and the entity of each known answer. [num_pairs] twice

        Raises:
            ValueError: an entity or a relation is out of range.
        """
        for name, index, count in (("known", known, self.num_nodes), ("relation", relation, self.num_relations)):
            refuse_index(name, index, count)
        (entity, has_entity), (kind, has_kind) = _place(self._entities, known), _place(self._relations, relation)
        key = entity * len(self._relations) + kind
        first, last = torch.searchsorted(self._key, key), torch.searchsorted(self._key, key, right=True)
        counts = torch.where(has_entity & has_kind, last - first, 0)
        query = torch.repeat_interleave(torch.arange(len(key)), counts)
        within = torch.arange(len(query)) - (counts.cumsum(0) - counts)[query]
        return query, self._answer[first[query] + within]


def _place(sorted_values: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return each value's position in sorted values, and whether it occurs there. [num_values] twice."""
    values = values.long().contiguous()
    place = torch.searchsorted(sorted_values, values)
    return place, torch.searchsorted(sorted_values, values, right=True) > place


@torch.no_grad()
def rank_entities(
    model: KnowledgeGraphModel, triples: Tensor, known: KnownTriples, *, batch_size: int = 256, block_size: int = 8192
) -> Ranks:
    """Rank the true entity of each triple among all entities except other known correct answers.

    Entities are scored in blocks, so at most `batch_size * block_size` scores are in memory. Scores are computed in
    float64 and compared in float32. Otherwise equal scores, summed in different orders, could differ in the last bit
    and decide a tie.

    Args:
        model: Model that scores the candidates.
        triples: Head, relation and tail of each triple to rank. int64 [num_triples, 3]
        known: All known triples, with or without the triples to rank; its `side` is the end to rank.
        batch_size: Queries per batch.
        block_size: Entities per block.

    Returns:
        Ranks in the order of the triples.

    Raises:
        ValueError: a triple is out of range, `known` belongs to a different graph, a size is not positive, or a score
            is NaN or infinite and has no rank.

    Example:
        >>> from popgeo.nn import DistMult
        >>> model, triples = DistMult(5, 1, 4), torch.tensor([[0, 0, 1], [2, 0, 3]])
        >>> ranks = rank_entities(model, triples, KnownTriples(triples, 5, 1, side="tail"))
        >>> ranks.realistic.shape
        torch.Size([2])
    """
    _check(triples, model.num_nodes, model.num_relations)
    check_least(1, batch_size=batch_size, block_size=block_size)
    if (known.num_nodes, known.num_relations) != (model.num_nodes, model.num_relations):
        raise ValueError(
            f"known has {known.num_nodes} entities and {known.num_relations} relations, the model has "
            f"{model.num_nodes} and {model.num_relations}. Make KnownTriples of the model's graph."
        )
    fixed, asked = (0, 2) if known.side is TripleEnd.TAIL else (2, 0)
    exact = copy.deepcopy(model).double()
    parts = [
        _rank(exact, rows[:, fixed], rows[:, 1], rows[:, asked], known, block_size)
        for rows in triples.split(batch_size)
    ]
    return Ranks.join(*parts)


def _rank(
    model: KnowledgeGraphModel, fixed: Tensor, relation: Tensor, answer: Tensor, known: KnownTriples, block_size: int
) -> Ranks:
    """Return the ranks of a batch of queries. [num_queries] three times."""
    query = model.query(model.entities(fixed), model.relations(relation), known.side)
    true = model.similarity.of_rows(query, model.entities(answer)).float().unsqueeze(1)  # [num_queries, 1]
    number, others = known.of(fixed, relation)
    above, level = torch.zeros(2, len(answer), dtype=torch.int64)
    for start in range(0, model.num_nodes, block_size):
        stop = min(start + block_size, model.num_nodes)
        scores = model.similarity.of_pairs(query, model.entities(torch.arange(start, stop))).float()
        if not bool(scores.isfinite().all()):
            raise ValueError("A score is NaN or infinite and has no rank. Look at the weights: did training diverge?")
        for rows, entities in ((number, others), (torch.arange(len(answer)), answer)):
            here = ((entities >= start) & (entities < stop)).nonzero().flatten()
            scores[rows[here], entities[here] - start] = -torch.inf
        above += (scores > true).sum(1)
        level += (scores == true).sum(1)
    return Ranks(optimistic=1 + above, pessimistic=1 + above + level)


def _check(triples: Tensor, num_nodes: int, num_relations: int) -> None:
    if triples.dim() != 2 or triples.shape[1] != 3 or triples.dtype != torch.int64:
        given = f"{triples.dtype} of shape {tuple(triples.shape)}"
        raise ValueError(f"triples are {given}; they need int64 [num_triples, 3]: head, relation, tail.")
    limits = torch.tensor([num_nodes, num_relations, num_nodes])
    if bool(((triples < 0) | (triples >= limits)).any()):
        raise ValueError(f"A triple is out of range: there are {num_nodes} entities and {num_relations} relations.")
