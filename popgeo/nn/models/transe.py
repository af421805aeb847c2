"""TransE: a relation moves the head to the tail."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.nn.models.knowledge_graph import KnowledgeGraphModel, Nearness, TripleEnd


class TransE(KnowledgeGraphModel):
    """A model that scores a triple by `-|h + r - t|`, Bordes et al., NeurIPS 2013, eq. 1.

    Entities lie on the unit sphere. The model equals `torch_geometric.nn.kge.TransE` and loads its checkpoints.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Numbers of an embedding.
        p_norm: Order of the norm for the distance and for the sphere.

    Raises:
        ValueError: one of the first three arguments is not positive.

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
        """Draw uniform weights and put the relations on the unit sphere."""
        bound = 6.0 / math.sqrt(self.hidden_channels)
        nn.init.uniform_(self.node_emb.weight, -bound, bound)
        nn.init.uniform_(self.rel_emb.weight, -bound, bound)
        with torch.no_grad():
            self.rel_emb.weight.copy_(F.normalize(self.rel_emb.weight, p=self.p_norm, dim=-1))

    def entities(self, index: Tensor) -> Tensor:
        """Return entities on the unit sphere: [...] -> [..., hidden_channels]."""
        return F.normalize(self.node_emb(index), p=self.p_norm, dim=-1)

    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """Return h + r to find a tail, and t - r to find a head. [..., hidden_channels]."""
        return known + relation if side is TripleEnd.TAIL else known - relation
