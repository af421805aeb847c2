"""SchNet: continuous-filter convolutions over the distances between atoms (arXiv:1706.08566)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from popgeo.did_you_mean import names_arguments
from popgeo.elements import ATOMIC_MASSES
from popgeo.nn.atom_edges import Edges
from popgeo.nn.filter_grid import FilterNetworks, GridFilters
from popgeo.nn.models.atom_model import AtomModel
from popgeo.nn.radial import GaussianSmearing, ShiftedSoftplus, envelope_for
from popgeo.ops import global_add_pool
from popgeo.ops.gather_scatter import rows_of_ends


class CFConv(nn.Module):
    """A continuous-filter convolution with given filters: x_i' = lin2(sum over j of lin1(x_j) * W(r_ij))."""

    def __init__(self, in_channels: int, out_channels: int, num_filters: int, filter_network: nn.Module) -> None:
        super().__init__()
        self.lin1 = nn.Linear(in_channels, num_filters, bias=False)
        self.lin2 = nn.Linear(num_filters, out_channels)
        # The block owns the network as `mlp`; PyG's checkpoints also hold it by the name `nn`.
        self.nn = filter_network

    def forward(self, x: Tensor, w: Tensor | GridFilters, edges: Edges) -> Tensor:
        """Return summed messages: [num_nodes, in_channels], [num_edges, num_filters] -> [num_nodes, out_channels]."""
        if isinstance(w, GridFilters):
            return self.lin2(w.convolve(self.lin1(x)))
        return self.lin2(edges.convolve(self.lin1(x), w))


class InteractionBlock(nn.Module):
    """One block: the sums of one round of messages, to be added to the atoms' features."""

    def __init__(self, hidden_channels: int, num_gaussians: int, num_filters: int, stable: bool) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(num_gaussians, num_filters), ShiftedSoftplus(stable), nn.Linear(num_filters, num_filters)
        )
        self.conv = CFConv(hidden_channels, hidden_channels, num_filters, self.mlp)
        self.act = ShiftedSoftplus(stable)
        self.lin = nn.Linear(hidden_channels, hidden_channels)

    def forward(
        self, x: Tensor, rbf: Tensor, envelope: Tensor, edges: Edges, filters: GridFilters | None = None
    ) -> Tensor:
        """Return the sums: [num_nodes, hidden], [num_edges, num_gaussians], [num_edges, 1] -> [num_nodes, hidden].

        With `filters` on a grid, the filters of all edges are never in memory.
        """
        w = self.mlp(rbf) * envelope if filters is None else filters  # [num_edges, num_filters]
        return self.lin(self.act(self.conv(x, w, edges)))


@names_arguments
class SchNet(AtomModel):
    """A model that predicts a property of each molecule from atomic numbers and positions (arXiv:1706.08566).

    Parameters have the names of `torch_geometric.nn.SchNet`, so its checkpoints load without changes. Atoms of number 0
    are padding: their embedding is zero and they neither send nor receive.

    Args:
        hidden_channels: Features of an atom.
        num_filters: Channels of the filters.
        num_interactions: Blocks.
        num_gaussians: Gaussians that expand a distance.
        cutoff: Longest interaction, in the unit of the positions.
        interaction_graph: Module that turns positions into edges. Default: `KNNInteractionGraph(max_num_neighbors,
            cutoff)`. PyG's interaction graphs, which take only `pos` and `batch`, work too.
        max_num_neighbors: Edges of each atom; used without an `interaction_graph`.
        readout: Reduction of a molecule's atoms: `"add"`, `"mean"` or `"max"`.
        dipole: Whether to predict the magnitude of the dipole moment. Each atom's output is then its charge, and
            `readout`, `mean`, `std` and `atomref` have no effect.
        mean: Number that is added to each atom's output, after `std`; pass both numbers or neither.
        std: Factor of each atom's output.
        atomref: Energy of a single atom of each element, added to the atom's output. [100] or [100, 1]
        envelope: Module that ends the filters, 0 from the cutoff on. Default: `CosineEnvelope(cutoff)`.
        stable_softplus: Form of `ShiftedSoftplus`.
        filters: `"grid"` evaluates the filter networks at a few hundred distances and interpolates, which is as exact
            as float32 and several times as fast (`refine_filters`); `"edges"` evaluates them at each edge.

    Raises:
        ValueError: the readout or the choice of filters is unknown, only one of `mean` and `std` is given, or the
            envelope is not 0 at the cutoff.

    Example:
        >>> model = SchNet(hidden_channels=16, num_filters=16, num_interactions=2)
        >>> z, batch = torch.tensor([8, 1, 1, 6, 0]), torch.tensor([0, 0, 0, 1, 2])
        >>> model(z, torch.randn(5, 3), batch, num_graphs=3).shape
        torch.Size([3, 1])
    """

    shown = "hidden_channels", "num_filters", "num_interactions", "num_gaussians", "cutoff"
    atomic_mass: Tensor

    def __init__(
        self,
        hidden_channels: int = 128,
        num_filters: int = 128,
        num_interactions: int = 6,
        num_gaussians: int = 50,
        cutoff: float = 10.0,
        interaction_graph: Callable[..., tuple[Tensor, Tensor]] | None = None,
        max_num_neighbors: int = 32,
        readout: str = "add",
        dipole: bool = False,
        mean: float | None = None,
        std: float | None = None,
        atomref: Tensor | None = None,
        *,
        envelope: nn.Module | None = None,
        stable_softplus: bool = True,
        filters: str = "grid",
    ) -> None:
        super().__init__(hidden_channels, cutoff, interaction_graph, max_num_neighbors, readout, filters)
        if (mean is None) != (std is None):
            raise ValueError(f"mean is {mean} and std is {std}; give both or none.")
        self.num_filters, self.num_interactions, self.num_gaussians = num_filters, num_interactions, num_gaussians
        self.dipole, self.mean, self.std = dipole, mean, std
        self.distance_expansion = GaussianSmearing(0.0, cutoff, num_gaussians)
        self.envelope = envelope_for(cutoff, envelope)
        self.interactions = nn.ModuleList(
            InteractionBlock(hidden_channels, num_gaussians, num_filters, stable_softplus)
            for _ in range(num_interactions)
        )
        if dipole:
            self.register_buffer("atomic_mass", torch.tensor(ATOMIC_MASSES, dtype=torch.float64))
        self._add_output(ShiftedSoftplus(stable_softplus), atomref)

    def features(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, r: Tensor, half_list: bool, edge_shift: Tensor | None
    ) -> Tensor:
        """Return the atoms' features after all blocks. [num_atoms, hidden_channels]."""
        edges = Edges.of(edge_index, z.size(0), half_list)
        blocks, x = list(self.interactions), self.embedding(z)  # [num_atoms, hidden_channels]
        are_own = all(type(block) is InteractionBlock for block in blocks)
        grids = self.grid_filters(r, edges, z.size(0)) if are_own else None
        if grids is not None:
            for block, filters in zip(blocks, grids, strict=True):
                x = x + block(x, r, r, edges, filters)
            return x
        rbf = self.distance_expansion(r)  # [num_edges, num_gaussians]
        envelope = self.envelope(r).unsqueeze(1)  # [num_edges, 1]
        for block in blocks:
            x = x + block(x, rbf, envelope, edges)
        return x

    def filter_networks(self) -> FilterNetworks:
        """Return the networks that make the filters of the blocks."""
        networks = [block.get_submodule("mlp") for block in self.interactions]
        return FilterNetworks(
            expand=self.distance_expansion, envelope=self.envelope, networks=networks, cutoff=self.cutoff
        )

    def read_out(self, x: Tensor, z: Tensor, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor) -> Tensor:
        """Return the dipole moments, or the reduction of the atoms' scaled and shifted outputs. [num_graphs, 1]."""
        if self.dipole:
            mass = self.atomic_mass[z].unsqueeze(1).to(pos.dtype)  # [num_atoms, 1]
            return dipole_magnitude(x, pos, mass, batch, num_graphs, nodes_mask)
        if self.mean is not None and self.std is not None:
            x = x * self.std + self.mean
        return super().read_out(x, z, pos, batch, num_graphs, nodes_mask)


def dipole_magnitude(
    charge: Tensor, pos: Tensor, mass: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor
) -> Tensor:
    """Return the length of each molecule's sum of charge times position, with the center of mass as origin.

    Args:
        charge: Charge of each atom. [num_atoms, 1]
        pos: Positions. [num_atoms, 3]
        mass: Mass of each atom, in any unit. [num_atoms, 1]
        batch: Molecule of each atom. [num_atoms]
        num_graphs: Molecules, padding included.
        nodes_mask: True where the atom is real. [num_atoms]

    Returns:
        Lengths in the unit of charge times position; 0, with a gradient of 0, for molecules without atoms.
        [num_graphs, 1]

    Example:
        >>> charge, pos = torch.tensor([[1.0], [-1.0]]), torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
        >>> batch, mask = torch.tensor([0, 0]), torch.tensor([True, True])
        >>> dipole_magnitude(charge, pos, torch.ones(2, 1), batch, 1, mask)
        tensor([[5.]])
    """
    real = nodes_mask.unsqueeze(1)
    mass, pos, charge = (torch.where(real, part, 0) for part in (mass, pos, charge))
    total = global_add_pool(mass, batch, num_graphs)  # [num_graphs, 1]
    total = torch.where(total > 0, total, 1)
    centre = global_add_pool(mass * pos, batch, num_graphs) / total  # [num_graphs, 3]
    moment = global_add_pool(charge * (pos - rows_of_ends(centre, batch)), batch, num_graphs)  # [num_graphs, 3]
    square = moment.square().sum(1, keepdim=True)
    moved = square != 0  # also true for NaN, which stays NaN
    return torch.where(moved, torch.where(moved, square, 1).sqrt(), 0)  # [num_graphs, 1]
