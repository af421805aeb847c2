"""The edges between atoms, with directions and sums over neighbors, for the blocks of a model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.ops import EdgePlan, cfconv
from popgeo.ops.eager import makes_plans
from popgeo.ops.gather_scatter import rows_of_ends


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The edges between interacting atoms, with the plans that all blocks share.

    Attributes:
        neighbor: Neighbor of each edge. [num_edges]
        centre: Center of each edge. [num_edges]
        half_list: Whether each edge represents both directions.
        plan: Plans of both ends; None in code that popgeo captures.
        reverse_plan: Plans of the edges in the opposite direction; None likewise.
    """

    neighbor: Tensor
    centre: Tensor
    half_list: bool
    plan: EdgePlan | None
    reverse_plan: EdgePlan | None

    @classmethod
    def of(cls, edge_index: Tensor, num_nodes: int, half_list: bool, with_plans: bool = True) -> "Edges":
        """Return the edges with plans. popgeo's captures need none, because the compiler makes them."""
        neighbor, centre = edge_index[0], edge_index[1]
        plan = reverse = None
        if with_plans and makes_plans():
            plan = EdgePlan.from_edge_index(edge_index, num_nodes)
            reverse, neighbor, centre = EdgePlan(src=plan.dst, dst=plan.src), plan.src.index, plan.dst.index
        return cls(neighbor=neighbor, centre=centre, half_list=half_list, plan=plan, reverse_plan=reverse)

    def convolve(self, x: Tensor, w: Tensor, odd: bool = False) -> Tensor:
        """Sum x_j * w_ij over the neighbors j of each atom i.

        Args:
            x: Features that each atom sends. [num_nodes, channels]
            w: Filter of each edge. [num_edges, channels]
            odd: Whether the filter changes its sign in the other direction; it matters for a half list only.

        Returns:
            The sums. [num_nodes, channels]
        """
        message = cfconv(x, w, self.neighbor, self.centre, x.size(0), self.plan)
        if not self.half_list:
            return message
        back = cfconv(x, w, self.centre, self.neighbor, x.size(0), self.reverse_plan)
        return message - back if odd else message + back


def directions(pos: Tensor, edge_index: Tensor, r: Tensor, cutoff: float, edge_shift: Tensor | None = None) -> Tensor:
    """Return unit vectors from each edge's center to its neighbor; zero for absent edges and for edges of length 0.

    Args:
        pos: Positions. [num_nodes, 3]
        edge_index: Neighbor and center of each edge. [2, num_edges]
        r: Lengths; the cutoff for an absent edge. [num_edges]
        cutoff: Longest edge.
        edge_shift: Vector to add to the neighbor's position. [num_edges, 3]

    Returns:
        [num_edges, 3]

    Example:
        >>> pos, r = torch.tensor([[0.0, 0, 0], [3, 4, 0]]), torch.tensor([5.0, 10.0])
        >>> directions(pos, torch.tensor([[1, 1], [0, 0]]), r, cutoff=10.0)
        tensor([[0.6000, 0.8000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    real = ((r < cutoff) & (r > 0)).unsqueeze(1)  # [num_edges, 1]
    vector = rows_of_ends(pos, edge_index[0]) - rows_of_ends(pos, edge_index[1])
    vector = (vector if edge_shift is None else vector + edge_shift).to(r.dtype)
    # Masked before the division, so that padding nodes have no gradient, whatever their values.
    return torch.where(real, vector, 0.0) / torch.where(real, r.unsqueeze(1), 1.0)
