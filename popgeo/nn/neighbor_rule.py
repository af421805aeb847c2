"""The rule that decides which pairs of atoms interact in a model and in all of its programs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popgeo.nn.interaction_graph import InteractionGraph
from popgeo.ops import global_add_pool
from popgeo.ops.refusals import require


@dataclass(frozen=True, kw_only=True)
class NeighborRule:
    """A rule that decides which pairs of atoms interact in a model, with or without a given list of pairs.

    Attributes:
        cutoff: Longest pair, in the unit of the positions.
        max_num_neighbors: Largest number of neighbors of an atom, its nearest ones; None for all within the cutoff, 0
            if only `search` knows the number.
        is_default: Whether the number is a default, and not the user's choice. A default applies to `search` only, not
            for listed pairs.
        search: Function that finds edges and their lengths from positions and the molecule of each atom, without
            periodic images. None for a model that requires a list.
    """

    cutoff: float
    max_num_neighbors: int | None = None
    is_default: bool = False
    search: Callable[..., Any] | None = None

    @classmethod
    def of(cls, search: Any, cutoff: float) -> "NeighborRule":
        """Return the rule of a model with this cutoff and interaction graph, which may be from another library."""
        limit = None if isinstance(search, InteractionGraph) else getattr(search, "max_num_neighbors", 0)
        limit = getattr(search, "k", limit)
        own = getattr(search, "cutoff", cutoff)
        cutoff = min(cutoff, own) if isinstance(own, (int, float)) else cutoff
        is_default = getattr(search, "_is_default", False)
        return cls(cutoff=cutoff, max_num_neighbors=limit, is_default=is_default, search=search)

    def checked(self, r: Tensor, edge_index: Tensor, num_nodes: int, half_list: bool, listed: Tensor | None) -> Tensor:
        """Return the lengths of listed pairs after the check that the list has exactly the pairs that interact.

        Args:
            r: Lengths; at least the cutoff for absent edges. [num_edges]
            edge_index: Neighbor and center of each edge. [2, num_edges]
            num_nodes: Atoms.
            half_list: Whether each pair is listed once.
            listed: Distance up to which pairs of each graph are listed, 0 for padding. [num_graphs]

        Raises:
            ValueError: pairs are missing, or an atom has more neighbors than the rule allows.
        """
        r = r if listed is None else self.require_all_pairs(listed, r)
        if self.max_num_neighbors and not self.is_default:
            near = (r < self.cutoff).float().repeat(2 if half_list else 1)  # float32 counts exactly
            centres = edge_index.flatten() if half_list else edge_index[1]
            counts = global_add_pool(near.unsqueeze(1), centres, num_nodes)
            r = require((counts <= self.max_num_neighbors).all(), r, lambda: self.why_not_all(int(counts.max())))
        return r

    def require_all_pairs(self, listed: Tensor, value: Tensor) -> Tensor:
        """Return `value` after the check that pairs are listed up to the cutoff; `listed` is an argument of `checked`.

        Raises:
            ValueError: pairs are missing.
        """
        short = (listed > 0) & (listed < self.cutoff * (1 - 2 * torch.finfo(listed.dtype).eps))
        return require(~short.any(), value, lambda: self._why_short(float(listed[short].min())))

    def why_not_all(self, count: int) -> str:
        """Return the error message for a list with more neighbors of an atom than the model allows."""
        most = f"the nearest {self.max_num_neighbors}" if self.max_num_neighbors else "an unknown number"
        return (
            f"An atom has {count} neighbors within {self.cutoff:.6g}, and the model takes {most} of them: its "
            f"interaction_graph is {self.search}, which knows no images of atoms in a cell. Leave edge_index out if "
            f"nothing repeats, or make the model with interaction_graph=PairInteractionGraph({self.cutoff:.6g})."
        )

    def why_listed(self) -> str:
        """Return the error message for a periodic structure without a list of pairs."""
        return (
            "A structure repeats (pbc, cell), and its pairs are not listed with their images: it would be predicted as "
            f"a molecule. Read it with popgeo.convert.read_atoms(cutoff={self.cutoff:.6g}), or pass "
            f"--cutoff {self.cutoff:.6g}, which list them as edge_index and edge_shift; or set pbc and cell to 0."
        )

    def _why_short(self, listed: float) -> str:
        return (
            f"The pairs of atoms are listed up to {listed:.6g}, and the model's cutoff is {self.cutoff:.6g}: pairs are "
            f"missing. List them again with cutoff={self.cutoff:.6g}."
        )
