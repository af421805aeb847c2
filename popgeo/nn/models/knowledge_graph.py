"""The base class of embeddings of knowledge graphs: two parts of a triple make a query for the third part.

A triple (h, r, t) says that the relation r leads from the head h to the tail t. Each model combines one entity and the
relation into a query, and scores the triple by the similarity of query and other entity. So one product of matrices
compares one query with all entities, for training and for ranking.
"""

from abc import abstractmethod
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor, nn

from popgeo.ops.refusals import check_least


class TripleEnd(str, Enum):
    """The end of a triple that a query asks for."""

    HEAD = "head"
    """(?, r, t)"""
    TAIL = "tail"
    """(h, r, ?)"""


class Similarity(Protocol):
    """A similarity of queries and entities; larger values mean more similar."""

    def of_rows(self, query: Tensor, entity: Tensor) -> Tensor:
        """Compare queries and entities row by row: [..., width], [..., width] -> [...]."""

    def of_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """Compare every query with every entity: [..., q, width], [..., e, width] -> [..., q, e]."""


class Dot:
    """A similarity that is the inner product.

    Example:
        >>> Dot().of_pairs(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 3.0]]))
        tensor([[3., 6.]])
    """

    def of_rows(self, query: Tensor, entity: Tensor) -> Tensor:
        """Return the product of each row: [..., width], [..., width] -> [...]."""
        return (query * entity).sum(-1)

    def of_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """Return the product of each pair: [..., q, width], [..., e, width] -> [..., q, e]."""
        return query @ entities.transpose(-1, -2)


class Nearness:
    """A similarity that is a constant minus the distance.

    Args:
        p: Order of the norm that measures the distance.
        at_zero: The constant.

    Example:
        >>> Nearness(p=2.0, at_zero=1.0).of_pairs(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[-4.]])
    """

    def __init__(self, p: float, at_zero: float = 0.0) -> None:
        self.p, self.at_zero = p, at_zero

    def of_rows(self, query: Tensor, entity: Tensor) -> Tensor:
        """Return the nearness of each row: [..., width], [..., width] -> [...]."""
        return self.at_zero - torch.linalg.vector_norm(query - entity, ord=self.p, dim=-1)

    def of_pairs(self, query: Tensor, entities: Tensor) -> Tensor:
        """Return the nearness of each pair: [..., q, width], [..., e, width] -> [..., q, e]."""
        # With a matrix product, |q|^2 - 2 qe + |e|^2, small distances would lose most of their digits.
        return self.at_zero - torch.cdist(query, entities, p=self.p, compute_mode="donot_use_mm_for_euclid_dist")


class KnowledgeGraphModel(nn.Module):
    """A model that scores triples by embeddings of their entities and relations; the four models differ in `query`.

    Parameters have the names of `torch_geometric.nn.kge`, so its checkpoints load without changes.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Numbers of an embedding; complex numbers if the model is complex.
        similarity: Measure that compares a query with an entity.
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
        """Draw Xavier-uniform weights, entities first."""
        for _, table in sorted(self.named_parameters()):
            nn.init.xavier_uniform_(table)

    @property
    def entity_tables(self) -> dict[str, nn.Parameter]:
        """The parameters with one row for each entity, by name."""
        return {name: p for name, p in self.named_parameters() if name.startswith("node_emb")}

    @abstractmethod
    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """Return the query for the entity at `side`, from the other end and the relation; all are [..., width]."""

    def entities(self, index: Tensor) -> Tensor:
        """Return the embeddings of entities, real parts first and then imaginary parts: [...] -> [..., width]."""
        real = self.node_emb(index)
        return torch.cat([real, self.node_emb_im(index)], dim=-1) if self.is_complex else real

    def relations(self, index: Tensor) -> Tensor:
        """Return the embeddings of relations as `query` takes them: [...] -> [..., width]."""
        return self.rel_emb(index)

    def forward(self, head_index: Tensor, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Return the score of each triple, larger for more likely triples: three times [...] -> [...]."""
        query = self.query(self.entities(head_index), self.relations(rel_type), TripleEnd.TAIL)
        return self.similarity.of_rows(query, self.entities(tail_index))

    def score_candidates(self, known: Tensor, rel_type: Tensor, side: TripleEnd, candidates: Tensor) -> Tensor:
        """Return the score of each triple with each candidate at one end.

        Args:
            known: Entity at the other end of each triple. [num_queries]
            rel_type: Relation of each triple. [num_queries]
            side: End of the triple that the candidates take.
            candidates: Entities to compare. [num_candidates]

        Returns:
            [num_queries, num_candidates]
        """
        query = self.query(self.entities(known), self.relations(rel_type), side)
        return self.similarity.of_pairs(query, self.entities(candidates))

    def cubes(self, rows: Tensor) -> Tensor:
        """Return each row's sum of cubed absolute values, the N3 norm of arXiv:1806.07297: [..., width] -> [...]."""
        if self.is_complex:
            real, imaginary = rows.chunk(2, dim=-1)
            return (real.square() + imaginary.square()).pow(1.5).sum(-1)
        return rows.abs().pow(3).sum(-1)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.num_nodes}, num_relations={self.num_relations}, hidden_channels={self.hidden_channels}"
