"""RotatE: a relation rotates the head's complex numbers onto the tail's complex numbers."""

import math

import torch
from torch import Tensor, nn

from popgeo.nn.models.complex import complex_product
from popgeo.nn.models.knowledge_graph import KnowledgeGraphModel, Nearness, TripleEnd


class RotatE(KnowledgeGraphModel):
    """A model that scores a triple by `margin - |h r - t|` with rotations r, `|r| = 1`, arXiv:1902.10197, eq. 2 and 3.

    The distance is Euclidean over all parts. The model equals `torch_geometric.nn.kge.RotatE` and loads its
    checkpoints.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Complex numbers of an entity, and angles of a relation.
        margin: Score of a triple that fits exactly.

    Raises:
        ValueError: one of the first three arguments is not positive.

    Example:
        >>> model = RotatE(num_nodes=10, num_relations=2, hidden_channels=8)
        >>> bool((model(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2, 3])) < 1.0).all())
        True
    """

    def __init__(self, num_nodes: int, num_relations: int, hidden_channels: int, margin: float = 1.0) -> None:
        super().__init__(num_nodes, num_relations, hidden_channels, Nearness(2.0, at_zero=margin), is_complex=True)
        self.margin = margin
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform entities, and angles uniformly from the full circle."""
        nn.init.xavier_uniform_(self.node_emb.weight)
        nn.init.xavier_uniform_(self.node_emb_im.weight)
        nn.init.uniform_(self.rel_emb.weight, 0.0, 2 * math.pi)

    def relations(self, index: Tensor) -> Tensor:
        """Return the cosines, then the sines, of the angles: [...] -> [..., 2 * hidden_channels]."""
        angle = self.rel_emb(index)
        return torch.cat([angle.cos(), angle.sin()], dim=-1)

    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """Return the head rotated by the relation, or the tail rotated back. [..., 2 * hidden_channels]."""
        return complex_product(known, relation, conjugate=side is TripleEnd.HEAD)
