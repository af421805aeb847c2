"""ComplEx: DistMult over complex numbers, so that a relation can differ from its inverse."""

import torch
from torch import Tensor, nn

from popgeo.nn.models.knowledge_graph import Dot, KnowledgeGraphModel, TripleEnd


def complex_product(a: Tensor, b: Tensor, conjugate: bool = False) -> Tensor:
    """Return the elementwise products of complex numbers.

    Args:
        a: Real parts, then imaginary parts. [..., 2 * hidden]
        b: Real parts, then imaginary parts. [..., 2 * hidden]
        conjugate: Whether `b` is conjugated first.

    Returns:
        Real parts, then imaginary parts. [..., 2 * hidden]

    Example:
        >>> complex_product(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))  # i * i
        tensor([-1.,  0.])
    """
    (a_re, a_im), (b_re, b_im) = a.chunk(2, dim=-1), b.chunk(2, dim=-1)
    b_im = -b_im if conjugate else b_im
    return torch.cat([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], dim=-1)


class ComplEx(KnowledgeGraphModel):
    """A model that scores a triple by the real part of the sum of h r conj(t), arXiv:1606.06357, eq. 9.

    Embeddings are complex. The model equals `torch_geometric.nn.kge.ComplEx` and loads its checkpoints.

    Args:
        num_nodes: Entities.
        num_relations: Relations.
        hidden_channels: Complex numbers of an embedding.

    Raises:
        ValueError: one of the arguments is not positive.

    Example:
        >>> model = ComplEx(num_nodes=10, num_relations=2, hidden_channels=8)
        >>> model(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2, 3])).shape
        torch.Size([2])
    """

    def __init__(self, num_nodes: int, num_relations: int, hidden_channels: int) -> None:
        super().__init__(num_nodes, num_relations, hidden_channels, Dot(), is_complex=True)
        self.rel_emb_im = nn.Embedding(num_relations, hidden_channels)
        self.reset_parameters()

    def relations(self, index: Tensor) -> Tensor:
        """Return real parts, then imaginary parts, of relations: [...] -> [..., 2 * hidden_channels]."""
        return torch.cat([self.rel_emb(index), self.rel_emb_im(index)], dim=-1)

    def query(self, known: Tensor, relation: Tensor, side: TripleEnd) -> Tensor:
        """Return h r to find a tail, or t conj(r) to find a head, because Re(h r conj(t)) = Re(t conj(r) conj(h))."""
        return complex_product(known, relation, conjugate=side is TripleEnd.HEAD)
