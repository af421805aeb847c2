"""What the embeddings of knowledge graphs share: a query is made of two parts of a triple and compared with the third.

A triple (h, r, t) says that the relation r leads from the head h to the tail t. Each model here scores it by what it
makes of one entity and the relation, the query, and how near that is to the other entity; so one query can be compared
with all entities by one product of matrices, for training and for ranking.
"""

from abc import abstractmethod
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor, nn

from popgeo.ops.refusals import check_least


class TripleEnd(str, Enum):
    """Which end of a triple is asked for."""

    HEAD = "head"
    """(?, r, t)"""
    TAIL = "tail"
    """(h, r, ?)"""


class Similarity(Protocol):
    """How near queries are to entities; larger is nearer."""

    def of_rows(self, query: Tensor, entity: Tensor) -> Tensor:
        """Row by row. [..., width], [..., width] -> [...]"""

    def of_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """Every query with every entity. [..., queries, width], [..., entities, width] -> [..., queries, entities]"""


class Dot:
    """The inner product.

    Example:
        >>> Dot().of_pairs(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 3.0]]))
        tensor([[3., 6.]])
    """

    def of_rows(self, query: Tensor, entity: Tensor) -> Tensor:
        """[..., width], [..., width] -> [...]"""
        return (query * entity).sum(-1)

    def of_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """[..., queries, width], [..., entities, width] -> [..., queries, entities]"""
        return query @ entities.transpose(-1, -2)


class Nearness:
    """A constant less the distance.

    Args:
        p: Which norm measures the distance.
        at_zero: The constant.

    Example:
        >>> Nearness(p=2.0, at_zero=1.0).of_pairs(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[-4.]])
    """

    def __init__(self, p: float, at_zero: float = 0.0) -> None:
        self.p, self.at_zero = p, at_zero

    def of_rows(self, query: Tensor, entity: Tensor) -> Tensor:
        """[..., width], [..., width] -> [...]"""
        return self.at_zero - torch.linalg.vector_norm(query - entity, ord=self.p, dim=-1)

    def of_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """[..., queries, width], [..., entities, width] -> [..., queries, entities]"""
        # Through a matrix product, |q|^2 - 2 qe + |e|^2, small distances would lose most of their digits.
        return self.at_zero - torch.cdist(query, entities, p=self.p, compute_mode="donot_use_mm_for_euclid_dist")


class KnowledgeGraphModel(nn.Module):
    """Scores triples by embeddings of their entities and relations; the four models differ in `query`.

    Parameters have the names of `torch_geometric.nn.kge`, whose checkpoints load as they are.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Numbers of an embedding, complex ones where the model has such.
        similarity: What compares a query with an entity.
        is_complex: Whether entities have an imaginary part.

    Raises:
        ValueError: one of the three numbers is not positive.
    """

    node_emb_im: nn.Embedding

    def __init__(
        self, num_nodes: int, num_relations: int, hidden_channels: int, similarity: Similarity, is_complex: bool = False
    ) -> None:
        super().__init__()
        check_least(1, num_nodes=num_nodes, num_relations=num_relations, hidden_channels=hidden_channels)
        self.num_nodes, self.num_relations, self.hidden_channels = num_nodes, num_relations, hidden_channels
        self.similarity, self.is_complex = similarity, is_complex
        self.node_emb = nn.Embedding(num_nodes, hidden_channels)
        self.rel_emb = nn.Embedding(num_relations, hidden_channels)
        if is_complex:
            self.node_emb_im = nn.Embedding(num_nodes, hidden_channels)

    def reset_parameters(self) -> None:
        """Draws Xavier-uniform weights, entities first."""
        for _, table in sorted(self.named_parameters()):
            nn.init.xavier_uniform_(table)

    @property
    def entity_tables(self) -> dict[str, nn.Parameter]:
        """The parameters with one row for each entity, by name."""
        return {name: p for name, p in self.named_parameters() if name.startswith("node_emb")}

    @abstractmethod
    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """What is compared with the entities that may be at `side`, given the other end. [..., width] both"""

    def entities(self, index: Tensor) -> Tensor:
        """Entities as the model compares them: real parts, then imaginary ones. [...] -> [..., width]"""
        real = self.node_emb(index)
        return torch.cat([real, self.node_emb_im(index)], dim=-1) if self.is_complex else real

    def relations(self, index: Tensor) -> Tensor:
        """Relations as `query` takes them. [...] -> [..., width]"""
        return self.rel_emb(index)

    def forward(self, head_index: Tensor, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """The score of each triple; the larger, the more likely. [...] three times -> [...]"""
        query = self.query(self.entities(head_index), self.relations(rel_type), TripleEnd.TAIL)
        return self.similarity.of_rows(query, self.entities(tail_index))

    def score_candidates(self, known: Tensor, rel_type: Tensor, side: TripleEnd, candidates: Tensor) -> Tensor:
        """The scores of the triples that each candidate would make in place of the end that is asked for.

        Args:
            known: The other end of each triple. [num_queries]
            rel_type: Their relations. [num_queries]
            side: Which end is asked for.
            candidates: Entities to put there. [num_candidates]

        Returns:
            [num_queries, num_candidates]
        """
        query = self.query(self.entities(known), self.relations(rel_type), side)
        return self.similarity.of_pairs(query, self.entities(candidates))

    def cubes(self, rows: Tensor) -> Tensor:
        """The sum of the cubed absolute values of each row, the N3 norm of arXiv:1806.07297. [..., width] -> [...]"""
        if self.is_complex:
            real, imaginary = rows.chunk(2, dim=-1)
            return (real.square() + imaginary.square()).pow(1.5).sum(-1)
        return rows.abs().pow(3).sum(-1)

    def extra_repr(self) -> str:
        return f"{self.num_nodes}, num_relations={self.num_relations}, hidden_channels={self.hidden_channels}"
