"""DistMult: a relation weights the elementwise product of head and tail."""

from torch import Tensor

from popgeo.nn.models.knowledge_graph import Dot, KnowledgeGraphModel, TripleEnd


class DistMult(KnowledgeGraphModel):
    """A model that scores a triple by the sum of h r t, arXiv:1412.6575, eq. 2.

    The score stays the same when head and tail change places. The model equals `torch_geometric.nn.kge.DistMult` and
    loads its checkpoints.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Numbers of an embedding.

    Raises:
        ValueError: one of the arguments is not positive.

    Example:
        >>> import torch
        >>> model = DistMult(num_nodes=10, num_relations=2, hidden_channels=8)
        >>> head, relation, tail = torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2, 3])
        >>> torch.allclose(model(head, relation, tail), model(tail, relation, head))
        True
    """

    def __init__(self, num_nodes: int, num_relations: int, hidden_channels: int) -> None:
        super().__init__(num_nodes, num_relations, hidden_channels, Dot())
        self.reset_parameters()

    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """Return h r to find a tail, and t r to find a head. [..., hidden_channels]."""
        return known * relation
