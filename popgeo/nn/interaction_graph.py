"""Modules that find interacting atoms, and return edges in a fixed number of slots."""

import warnings
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from popgeo import largest_graph
from popgeo.ops import eager, neighbor_candidates
from popgeo.ops.neighbors import Neighbors, knn, pairs, radius
from popgeo.ops.refusals import check_least, require

_NARROW = 128  # number of atoms up to which a window of the whole batch costs little
MAX_NUM_NEIGHBORS = 32  # neighbors of an atom in models without a chosen number


class InteractionGraph(nn.Module):
    """A module that turns positions into edges, for the argument `interaction_graph` of `SchNet` and `PaiNN`.

    Attributes:
        half_list: Whether each pair of atoms is listed once and represents the edges of both directions.
    """

    half_list = False
    max_num_nodes: int | None = None
    _is_default = False

    def forward(
        self, pos: Tensor, batch: Tensor, *, num_graphs: int | None = None, nodes_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return edges and their lengths.

        Args:
            pos: Positions. [num_nodes, 3]
            batch: Molecule of each atom, ascending. [num_nodes]
            num_graphs: Molecules in the batch, padding included. Default: the number of atoms.
            nodes_mask: True where the atom is real. [num_nodes]

        Returns:
            `edge_index` (neighbor, center) [2, num_edges], and the length of each edge, which is the cutoff for absent
            edges [num_edges]. Absent edges send nothing in a model of the same cutoff; models of `popgeo.nn` may also
            have a longer cutoff.
        """
        num_graphs = pos.size(0) if num_graphs is None else num_graphs
        edge_index, edge_weight, _ = self.find(pos, batch, num_graphs, nodes_mask)
        return edge_index, edge_weight

    def window(self, batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> int | None:
        """Return the number of atoms of the largest real molecule: given, counted or, in a capture, from the loader."""
        if self.max_num_nodes is not None:
            return self.max_num_nodes
        if eager.is_plain():
            sizes = neighbor_candidates.real_sizes(batch, num_graphs, nodes_mask)
            return max(2, int(sizes.max())) if len(sizes) else 2
        known = largest_graph.ask()
        # Half lists have slots for the whole window; other searches on the processor cost the same for any window.
        is_slow = (self.half_list or not batch.is_cpu) and len(batch) > _NARROW
        if known is None and is_slow and not torch.compiler.is_compiling():
            name = type(self).__name__
            warnings.warn(
                f"{name} was captured without knowing the largest molecule. It has slots for a molecule of all "
                f"{len(batch)} atoms of the batch, which is slow. Use a FixedSizeDataLoader over a dataset in memory, "
                f"or pass {name}(max_num_nodes=...): the atoms of the largest molecule.",
                stacklevel=2,
            )
        return known

    @abstractmethod
    def find(self, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> Neighbors:
        """Return the edges in their slots; `forward` explains the arguments."""

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        return ", ".join(f"{name}={value}" for name, value in settings.items())


class KNNInteractionGraph(InteractionGraph):
    """A graph of each atom's `k` nearest neighbors within the cutoff: exactly `k` edges per atom, so shapes are fixed.

    Absent neighbors have the length `cutoff`. Every envelope of this cutoff is 0 there, so they send nothing, and
    `edge_weight < cutoff` is the mask of the real edges. If each atom has at most `k` neighbors, the edges equal those
    of the radius graph.

    Args:
        k: Edges of each atom; one less than the atoms of the largest molecule never drops a neighbor.
        cutoff: Longest edge, in the unit of the positions.
        max_num_nodes: Atoms of the largest real molecule. Default: see `window`.

    Raises:
        ValueError: in a call, see `popgeo.ops.knn`.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [0, 0, 2]]), torch.tensor([0, 0])
        >>> edge_index, edge_weight = KNNInteractionGraph(k=1, cutoff=5.0)(pos, batch)
        >>> edge_index.tolist(), edge_weight.tolist()
        ([[1, 0], [0, 1]], [2.0, 2.0])
    """

    def __init__(self, k: int, cutoff: float = 10.0, max_num_nodes: int | None = None) -> None:
        super().__init__()
        self.k, self.cutoff, self.max_num_nodes = k, cutoff, max_num_nodes

    @classmethod
    def default(cls, k: int, cutoff: float) -> "KNNInteractionGraph":
        """Return the default graph of a model, and record whether the user chose `k`, for `NeighborRule`."""
        graph = cls(k, cutoff)
        graph._is_default = k == MAX_NUM_NEIGHBORS
        return graph

    def find(self, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> Neighbors:
        """Find `k` edges for each atom, sorted by atom. [num_nodes * k]."""
        size = self.window(batch, num_graphs, nodes_mask)
        return knn(pos, batch, self.k, self.cutoff, num_graphs=num_graphs, max_num_nodes=size, nodes_mask=nodes_mask)


class PairInteractionGraph(InteractionGraph):
    """A graph with each pair of atoms within the cutoff listed once, which needs half the slots of a full list.

    A filter depends on the distance alone, so both directions of a pair share it, and `SchNet` computes half as many
    filters. Absent pairs have the length `cutoff`, and every envelope is 0 there.

    Args:
        cutoff: Longest pair, in the unit of the positions.
        max_num_nodes: Atoms of the largest real molecule. Default: see `window`.

    Raises:
        ValueError: `max_num_nodes` is below 2; in a call, see `popgeo.ops.pairs`.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [0, 0, 2]]), torch.tensor([0, 0])
        >>> edge_index, edge_weight = PairInteractionGraph(cutoff=5.0)(pos, batch)
        >>> edge_index.tolist(), edge_weight.tolist()
        ([[1, 1], [0, 1]], [2.0, 5.0])
    """

    half_list = True

    def __init__(self, cutoff: float = 10.0, max_num_nodes: int | None = None) -> None:
        super().__init__()
        if max_num_nodes is not None and max_num_nodes < 2:
            raise ValueError(f"max_num_nodes is {max_num_nodes}; a pair has two nodes. Pass 2 or more.")
        self.cutoff, self.max_num_nodes = cutoff, max_num_nodes

    def find(self, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> Neighbors:
        """Find the pairs. [num_nodes * (max_num_nodes // 2)]."""
        size = self.window(batch, num_graphs, nodes_mask)
        return pairs(pos, batch, self.cutoff, num_graphs=num_graphs, max_num_nodes=size, nodes_mask=nodes_mask)


class RadiusInteractionGraph(InteractionGraph):
    """A graph of all atoms within the cutoff, in a fixed number of edge slots for the whole batch.

    Args:
        cutoff: Longest edge, in the unit of the positions.
        num_edges: Number of slots.
        max_num_nodes: Atoms of the largest real molecule. Default: see `window`.

    Raises:
        ValueError: there is no slot; in a call, a batch has more edges than slots, or see `popgeo.ops.radius`.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [0, 0, 2]]), torch.tensor([0, 0])
        >>> edge_index, edge_weight = RadiusInteractionGraph(cutoff=5.0, num_edges=3)(pos, batch)
        >>> edge_index.tolist(), edge_weight.tolist()
        ([[1, 0, 1], [0, 1, 1]], [2.0, 2.0, 5.0])
    """

    def __init__(self, cutoff: float, num_edges: int, max_num_nodes: int | None = None) -> None:
        super().__init__()
        check_least(1, num_edges=num_edges)
        self.cutoff, self.num_edges, self.max_num_nodes = cutoff, num_edges, max_num_nodes

    def find(self, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> Neighbors:
        """Find all edges, ordered by center. [num_edges]."""
        size = self.window(batch, num_graphs, nodes_mask)
        neighbors, num_missing = radius(
            pos, batch, self.cutoff, self.num_edges, num_graphs=num_graphs, max_num_nodes=size, nodes_mask=nodes_mask
        )
        reason = "The batch has {} edges within {}, num_edges is {}. Raise num_edges, or pack fewer atoms into a batch."
        lengths = require(
            num_missing == 0,
            neighbors.edge_weight,
            lambda: reason.format(self.num_edges + int(num_missing), self.cutoff, self.num_edges),
        )
        return neighbors._replace(edge_weight=lengths)


class PrecomputeInteractionGraph(BaseTransform):
    """A transform that finds a molecule's edges once, so that batches contain only real edges and little padding.

    Use it for fixed positions. Pass the batch's `edge_index` and the same `half_list` to the model, which computes the
    lengths, so that forces are correct. For periodic structures use `popgeo.convert.read_atoms(cutoff=)`.

    Args:
        cutoff: Longest edge, in the unit of the positions.
        half_list: Whether to list each pair once, with the lower index as center, instead of an edge in each direction.

    Raises:
        ValueError: the cutoff is not positive.

    Example:
        >>> molecule = Data(z=torch.tensor([8, 1, 1]), pos=torch.tensor([[0.0, 0, 0], [1, 0, 0], [-1, 0, 0]]))
        >>> PrecomputeInteractionGraph(cutoff=1.5)(molecule).edge_index
        tensor([[1, 2, 0, 0],
                [0, 0, 1, 2]])
        >>> PrecomputeInteractionGraph(cutoff=1.5, half_list=True)(molecule).edge_index
        tensor([[1, 2],
                [0, 0]])
    """

    def __init__(self, cutoff: float = 10.0, half_list: bool = False) -> None:
        if cutoff <= 0:
            raise ValueError(f"The cutoff is {cutoff}; it must be positive, in the unit of pos.")
        self.cutoff, self.half_list = cutoff, half_list

    def forward(self, data: Data) -> Data:
        """Set `edge_index` to the edges within the cutoff, sorted by center. Also set `cutoff`, which models check.

        PyG has copied the molecule before.

        Raises:
            ValueError: the structure repeats, or a position is missing or not finite.
        """
        repeats = next((data[name] for name in ("pbc", "cell") if name in data), torch.zeros(1))
        if bool(repeats.any()):
            raise ValueError("The structure repeats; popgeo.convert.read_atoms(cutoff=) lists pairs with images.")
        if data.pos is None or not bool(data.pos.isfinite().all()):
            raise ValueError(
                "pos has NaN or infinity, or is missing. Correct the positions, or leave the structure out."
            )
        r2 = (data.pos.unsqueeze(0) - data.pos.unsqueeze(1)).square().sum(2)
        near = (r2 <= self.cutoff * self.cutoff).triu(1)
        if not self.half_list:
            near = near | near.T
        centre, neighbor = near.nonzero().unbind(1)
        data.edge_index, data.cutoff = torch.stack([neighbor, centre]), data.pos.new_tensor([self.cutoff])
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(cutoff={self.cutoff}, half_list={self.half_list})"
