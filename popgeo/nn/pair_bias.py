"""PairBias: features of each pair of nodes of a graph as a bias of attention."""

import torch
from torch import Tensor, nn

from popgeo.nn.mlp import MLP
from popgeo.nn.radial import GaussianSmearing


class PairBias(nn.Module):
    """The bias B = B_SPD + B_3D: a learned number for each number of hops, and a function of the distance in space.

    B_SPD is eq. 6 of arXiv:2106.05234. B_3D expands distances in Gaussians, sec. 3.1 of arXiv:2210.01765. GPS++ adds
    both (arXiv:2212.02229, sec. 3.3); one of them may be left out. All layers of a model share the bias.

    Args:
        heads: Attention heads, each with its own bias.
        max_hops: Largest number of hops, as in `ShortestPaths`; None leaves hops out.
        cutoff: Center of the last Gaussian, in the unit of the distances; None leaves distances out.
        num_gaussians: Gaussians that expand a distance.

    Raises:
        ValueError: both parts are left out.

    Example:
        >>> bias = PairBias(heads=2, max_hops=5)
        >>> bias(hops=torch.zeros(3, 4, dtype=torch.uint8)).shape
        torch.Size([3, 4, 2])
    """

    def __init__(
        self, heads: int, max_hops: int | None = 20, cutoff: float | None = None, num_gaussians: int = 32
    ) -> None:
        super().__init__()
        if max_hops is None and cutoff is None:
            raise ValueError("max_hops and cutoff are both None, which leaves no bias. Pass one, or no PairBias.")
        self.heads, self.max_hops, self.cutoff = heads, max_hops, cutoff
        self.of_hops = None
        if max_hops is not None:
            self.of_hops = nn.Embedding(max_hops + 3, heads)  # 0 to max_hops, no path, absent
            nn.init.normal_(self.of_hops.weight, std=0.02)
        self.of_distance = None
        if cutoff is not None:
            self.smearing = GaussianSmearing(0.0, cutoff, num_gaussians)
            self.of_distance = MLP([num_gaussians, num_gaussians, heads], nn.functional.gelu)

    def forward(
        self, hops: Tensor | None = None, distance: Tensor | None = None, nodes_mask: Tensor | None = None
    ) -> Tensor:
        """Return a bias for each node, each place in its graph, and each head.

        Args:
            hops: Result of `ShortestPaths`. [num_nodes, max_num_nodes]
            distance: Result of `PairDistances`. [num_nodes, max_num_nodes]
            nodes_mask: True where the node is real. With it, padding rows may have any values. [num_nodes]

        Returns:
            [num_nodes, max_num_nodes, heads]

        Raises:
            ValueError: an argument is missing, or an argument is given for a part that was left out.
        """
        for name, given, made in (("hops", hops, self.of_hops), ("distance", distance, self.of_distance)):
            if (given is None) != (made is None):
                part = "max_hops" if name == "hops" else "cutoff"
                problem = "is missing" if given is None else f"is given, but PairBias was made with {part}=None"
                raise ValueError(f"{name} {problem}. Pass {name} if, and only if, {part} is set.")
        bias: Tensor | None = None
        if hops is not None and self.of_hops is not None:
            if nodes_mask is not None:
                hops = torch.where(nodes_mask.unsqueeze(1), hops, 0)
            bias = self.of_hops(hops.long())
        if distance is not None and self.of_distance is not None:
            if nodes_mask is not None:
                distance = torch.where(nodes_mask.unsqueeze(1), distance, 0.0)
            of_distance = self.of_distance(self.smearing(distance)).view(*distance.shape, self.heads)
            bias = of_distance if bias is None else bias + of_distance
        assert bias is not None, "__init__ checks it"
        return bias

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"heads={self.heads}, max_hops={self.max_hops}, cutoff={self.cutoff}"
