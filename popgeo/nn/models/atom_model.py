"""The base class of atom models, which finds edges from positions and reduces atoms to molecules."""

import warnings
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from popgeo.nn.atom_targets import MAX_Z
from popgeo.nn.filter_grid import FilterNetworksMixin, run_as_rows
from popgeo.nn.interaction_graph import InteractionGraph, KNNInteractionGraph
from popgeo.nn.neighbor_rule import NeighborRule
from popgeo.nn.readout import READOUTS
from popgeo.ops import distance
from popgeo.ops.eager import is_plain
from popgeo.ops.refusals import check_choice, check_ends, check_index, require


class AtomModel(FilterNetworksMixin):
    """A model that predicts a property of each molecule. Subclasses implement `features`.

    Attributes:
        shown: Names of the settings that `repr` shows.
    """

    shown: tuple[str, ...] = ()

    initial_atomref: Tensor | None

    def __init__(
        self,
        hidden_channels: int,
        cutoff: float,
        interaction_graph: Callable[..., tuple[Tensor, Tensor]] | None,
        max_num_neighbors: int,
        readout: str,
        filters: str,
    ) -> None:
        super().__init__()
        check_choice("readout", readout, READOUTS)
        check_choice("filters", filters, ("grid", "edges"))
        self.hidden_channels, self.cutoff, self.readout, self.filters = hidden_channels, cutoff, readout, filters
        self.embedding = nn.Embedding(MAX_Z, hidden_channels, padding_idx=0)
        self.interaction_graph = interaction_graph or KNNInteractionGraph.default(max_num_neighbors, cutoff)

    def _add_output(self, act: nn.Module, atomref: Tensor | None) -> None:
        """Add the output layers after the blocks, and initialize all weights."""
        self.lin1 = nn.Linear(self.hidden_channels, self.hidden_channels // 2)
        self.act = act
        self.lin2 = nn.Linear(self.hidden_channels // 2, 1)
        self.refer_to(atomref)
        self.reset_parameters()

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor | None = None,
        edge_index: Tensor | None = None,
        *,
        num_graphs: int | None = None,
        nodes_mask: Tensor | None = None,
        edges_mask: Tensor | None = None,
        half_list: bool = False,
        edge_shift: Tensor | None = None,
        pbc: Tensor | None = None,
        cell: Tensor | None = None,
        cutoff: Tensor | None = None,
    ) -> Tensor:
        """Return the prediction for each molecule.

        If positions are in float64, so are their differences and the sums over atoms, for weights of any type.

        Args:
            z: Atomic numbers, 0 for padding. A padding atom neither sends nor receives, and no readout counts it.
                [num_atoms]
            pos: Positions. [num_atoms, 3]
            batch: Molecule of each atom, ascending. Default: all atoms are one molecule. [num_atoms]
            edge_index: Neighbor and center of each edge, if edges are precomputed. [2, num_edges]
            num_graphs: Molecules in the batch, padding included. Default: read from `batch`; then no shape is fixed.
            nodes_mask: True where the atom is real. An atom with `z` of 0 is padding in any case. [num_atoms]
            edges_mask: True where a precomputed edge is real. An edge from an atom to itself without a shift is padding
                in any case. [num_edges]
            half_list: Whether `edge_index` lists each pair once and represents both directions.
            edge_shift: Vector from the neighbor to its periodic image that interacts: a whole multiple of the cell's
                vectors, in the unit of `pos`, zero for padding. [num_edges, 3]
            pbc: True for each vector along which a cell repeats. It only serves as a check: a structure that repeats
                needs listed pairs with their shifts. [num_graphs, 3]
            cell: Cells, for molecules without `pbc`; each cell that is not 0 then repeats. [num_graphs, 3, 3]
            cutoff: Distance up to which `edge_index` lists pairs, to be compared with the model's. [num_graphs]

        Returns:
            One prediction for each molecule. [num_graphs, 1]

        Raises:
            ValueError: there are shifts without edges; or edges of a periodic cell without shifts, as `pbc` or edges
                from an atom to itself show; or a cell that repeats without listed pairs; or a list that does not fit
                `neighbor_rule`. Compiled code returns NaN instead.
        """
        check_index("z", z, pos.size(0), pos)
        batch = torch.zeros_like(z) if batch is None else batch
        check_index("batch", batch, pos.size(0), pos)
        num_graphs = int(batch.max()) + 1 if num_graphs is None else num_graphs
        nodes_mask = z > 0 if nodes_mask is None else nodes_mask & (z > 0)
        rule, weights = self.neighbor_rule, self.embedding.weight.dtype
        if weights is torch.float64:
            pos = pos.double()
        if edge_index is None:
            if edge_shift is not None:
                raise ValueError("edge_shift is given without edge_index. Pass both or neither.")
            half_list = getattr(self.interaction_graph, "half_list", False)
            known = {"num_graphs": num_graphs, "nodes_mask": nodes_mask}
            known = known if isinstance(self.interaction_graph, InteractionGraph) else {}
            edge_index, r = self.interaction_graph(pos, batch, **known)
            repeats = cell if pbc is None else pbc
            r = r if repeats is None else require(~(repeats != 0).any(), r, rule.why_listed)
        else:
            # A padding edge joins a padding node to itself, so it needs no mask. In a small cell an atom also interacts
            # with its own images; these edges have a shift.
            check_ends(edge_index)
            real = edge_index[0] != edge_index[1]
            real = real if edge_shift is None else real | (edge_shift.abs().sum(1) != 0)
            real = real if edges_mask is None else real & edges_mask
            real = real & nodes_mask.index_select(0, edge_index[0]) & nodes_mask.index_select(0, edge_index[1])
            r = distance(pos, edge_index, real, self.cutoff, edge_shift)
            if edge_shift is None:
                r = _without_images(r, edge_index, nodes_mask)
                r = r if pbc is None else require(~pbc.any(), r, rule.why_listed)
                if not half_list and is_plain():
                    _warn_of_pairs(edge_index[:, real])
            r = rule.checked(r, edge_index, z.size(0), half_list, cutoff)
        if rule.cutoff < self.cutoff:  # absent edges are as long as the graph's cutoff, and filters may not be 0 there
            r = torch.where(r < rule.cutoff, r, self.cutoff)
        is_wide = pos.dtype is torch.float64
        r = r.to(weights) if is_wide else r
        x = self.features(z, pos, edge_index, r, half_list, edge_shift)  # [num_atoms, hidden_channels]
        x = self.act(self.lin1(x))  # [num_atoms, hidden_channels // 2]
        # In float64 energies may become large, and small differences of many atoms add up.
        x = run_as_rows(self.lin2, x.double()) if is_wide else self.lin2(x)  # [num_atoms, 1]
        return self.read_out(x, z, pos, batch, num_graphs, nodes_mask)

    @property
    def neighbor_rule(self) -> NeighborRule:
        """The rule for pairs of atoms that interact."""
        return NeighborRule.of(self.interaction_graph, self.cutoff)

    @property
    def elements(self) -> list[int]:
        """The atomic numbers that the model embeds."""
        return list(range(1, MAX_Z))

    @abstractmethod
    def features(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, r: Tensor, half_list: bool, edge_shift: Tensor | None
    ) -> Tensor:
        """Return the atoms' features after all blocks.

        Args:
            z: Atomic numbers. [num_atoms]
            pos: Positions. [num_atoms, 3]
            edge_index: Neighbor and center of each edge. [2, num_edges]
            r: Lengths; the cutoff for an absent edge. [num_edges]
            half_list: Whether each pair is listed once.
            edge_shift: Vector from each neighbor to its image that interacts. [num_edges, 3]

        Returns:
            [num_atoms, hidden_channels]
        """

    def read_out(self, x: Tensor, z: Tensor, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor) -> Tensor:
        """Return the molecules' predictions from one output per atom: [num_atoms, 1] -> [num_graphs, 1]."""
        x, real = x if self.atomref is None else x + self.atomref(z), nodes_mask.unsqueeze(1)
        if self.readout == "max":
            return READOUTS["max"](torch.where(real, x, torch.finfo(x.dtype).min), batch, num_graphs)
        total = READOUTS["add"](torch.where(real, x, 0.0), batch, num_graphs)
        return total if self.readout != "mean" else total / READOUTS["add"](real.to(x), batch, num_graphs).clamp(min=1)

    def refer_to(self, atomref: Tensor | None) -> None:
        """Add the reference energy of its element to each atom's output. Reference energies are trained."""
        self.register_buffer("initial_atomref", None if atomref is None else atomref.view(-1, 1))
        self.atomref = None if atomref is None else nn.Embedding(MAX_Z, 1)

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform weights, zero biases and normal embeddings, and restore the energies of elements."""
        self.embedding.reset_parameters()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.atomref is not None and self.initial_atomref is not None:
            with torch.no_grad():
                self.atomref.weight.copy_(self.initial_atomref)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        per_edge = "" if self.filters == "grid" and self.filter_points is not None else ", filters at each edge"
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown) + per_edge


def _without_images(r: Tensor, edge_index: Tensor, nodes_mask: Tensor) -> Tensor:
    """Return the lengths, after a check that no edge joins a real atom to itself.

    Only the image of an atom in a periodic cell is its own neighbor, and such an edge needs a shift.
    """
    itself = (edge_index[0] == edge_index[1]) & nodes_mask.index_select(0, edge_index[1])
    reason = (
        "{} edges join an atom to itself, as only edges to its images in a periodic cell do. Pass "
        "edge_shift=batch.edge_shift, which popgeo.convert makes; or drop these edges if there is no cell."
    )
    return require(~itself.any(), r, lambda: reason.format(int(itself.sum())))


def _warn_of_pairs(edges: Tensor) -> None:
    """Warn if edges seem to list each pair only once, because the model would miss half of the interactions.

    Only the first 64 edges are compared. [2, num_edges]
    """
    src, dst = edges
    many = 1 << 31
    if len(src) > 1 and not torch.isin(src * many + dst, (dst * many + src)[:64]).any():
        warnings.warn("No edge runs back. Pass half_list=True if each pair of atoms is listed once.", stacklevel=4)
