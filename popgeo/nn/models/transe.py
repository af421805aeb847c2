"""TransE: a relation moves the head to where the tail is."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.nn.models.knowledge_graph import KnowledgeGraphModel, Nearness, TripleEnd


class TransE(KnowledgeGraphModel):
    """Scores a triple by `-|h + r - t|`, the entities on the unit sphere (Bordes et al., NeurIPS 2013, eq. 1).

    Equal to `torch_geometric.nn.kge.TransE`, whose checkpoints load as they are.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Numbers of an embedding.
        p_norm: The norm of the distance and of the sphere.

    Raises:
        ValueError: one of the first three is not positive.

    Example:
        >>> model = TransE(num_nodes=10, num_relations=2, hidden_channels=8)
        >>> model(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2, 3])).shape
        torch.Size([2])
    """

    def __init__(self, num_nodes: int, num_relations: int, hidden_channels: int, p_norm: float = 1.0) -> None:
        super().__init__(num_nodes, num_relations, hidden_channels, Nearness(p_norm))
        self.p_norm = p_norm
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws uniform weights and puts the relations on the unit sphere."""
        bound = 6.0 / math.sqrt(self.hidden_channels)
        nn.init.uniform_(self.node_emb.weight, -bound, bound)
        nn.init.uniform_(self.rel_emb.weight, -bound, bound)
        with torch.no_grad():
            self.rel_emb.weight.copy_(F.normalize(self.rel_emb.weight, p=self.p_norm, dim=-1))

    def entities(self, index: Tensor) -> Tensor:
        """Entities on the unit sphere. [...] -> [..., hidden_channels]"""
        return F.normalize(self.node_emb(index), p=self.p_norm, dim=-1)

    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """h + r is where the tail should be, and t - r where the head should be. [..., hidden_channels]"""
        return known + relation if side is TripleEnd.TAIL else known - relation
