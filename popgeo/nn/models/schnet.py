"""SchNet: continuous-filter convolutions over the distances between atoms (arXiv:1706.08566)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from popgeo.nn.atom_edges import Edges
from popgeo.nn.dipole import ATOMIC_MASSES, dipole_magnitude
from popgeo.nn.interaction_graph import KNNInteractionGraph
from popgeo.nn.models.atom_model import MAX_Z, AtomModel
from popgeo.nn.one_pass_filters import DistanceColumn, OnePassFilters, networks_in_one_pass
from popgeo.nn.radial import CosineEnvelope, GaussianSmearing, ShiftedSoftplus
from popgeo.nn.readout import require_readout


class CFConv(nn.Module):
    """x_i' = lin2(sum over j of lin1(x_j) * W(r_ij)): the continuous-filter convolution, with the filters given."""

    def __init__(self, in_channels: int, out_channels: int, num_filters: int, filter_network: nn.Module) -> None:
        super().__init__()
        self.lin1 = nn.Linear(in_channels, num_filters, bias=False)
        self.lin2 = nn.Linear(num_filters, out_channels)
        # The block owns the network as `mlp`; PyG's checkpoints also hold it under this name.
        self.nn = filter_network

    def forward(self, x: Tensor, w: Tensor | OnePassFilters, edges: Edges) -> Tensor:
        """[num_nodes, in_channels], [num_edges, num_filters] -> [num_nodes, out_channels]"""
        if isinstance(w, OnePassFilters):
            return self.lin2(w.convolve(self.lin1(x)))
        return self.lin2(edges.convolve(self.lin1(x), w))


class InteractionBlock(nn.Module):
    """What one round of messages adds to the atoms' features."""

    def __init__(self, hidden_channels: int, num_gaussians: int, num_filters: int, stable: bool) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(num_gaussians, num_filters), ShiftedSoftplus(stable), nn.Linear(num_filters, num_filters)
        )
        self.conv = CFConv(hidden_channels, hidden_channels, num_filters, self.mlp)
        self.act = ShiftedSoftplus(stable)
        self.lin = nn.Linear(hidden_channels, hidden_channels)

    def forward(
        self, x: Tensor, rbf: Tensor, envelope: Tensor, edges: Edges, filters: OnePassFilters | None = None
    ) -> Tensor:
        """[num_nodes, hidden], [num_edges, num_gaussians], [num_edges, 1] -> [num_nodes, hidden]

        Where `filters` are given, the interaction makes them, and rows of all edges are never in memory.
        """
        if filters is not None:
            return self.lin(self.act(self.conv(x, filters, edges)))
        w = self.mlp(rbf) * envelope  # [num_edges, num_filters]
        return self.lin(self.act(self.conv(x, w, edges)))


class SchNet(AtomModel):
    """Predicts a property of each molecule from its atoms' numbers and positions (arXiv:1706.08566).

    Parameters have the names of `torch_geometric.nn.SchNet`, whose checkpoints load as they are. Atoms of number 0 are
    padding: their embedding is zero and they neither send nor receive.

    Args:
        hidden_channels: Features of an atom.
        num_filters: Channels of the filters.
        num_interactions: Blocks.
        num_gaussians: Gaussians that expand a distance.
        cutoff: Longest interaction, in the unit of the positions.
        interaction_graph: From positions to edges; `KNNInteractionGraph(max_num_neighbors, cutoff)` when left out.
            One of PyG's kind, called with `pos` and `batch` only, works too.
        max_num_neighbors: Edges of each atom when `interaction_graph` is left out.
        readout: Molecules are the `"add"`, the `"mean"` or the `"max"` of their atoms.
        dipole: Predict the magnitude of the dipole moment: each atom's output is its charge; `readout`, `mean`, `std`
            and `atomref` have no say.
        mean: Added to each atom's output, after `std`; both or none of the two are given.
        std: Scales each atom's output.
        atomref: Energy of each element on its own, added to the atom's output. [100] or [100, 1]
        envelope: What ends the filters at the cutoff; `CosineEnvelope(cutoff)` when left out.
        stable_softplus: The form of `ShiftedSoftplus`.

    Raises:
        ValueError: an unknown readout, or only one of `mean` and `std`.

    Example:
        >>> model = SchNet(hidden_channels=16, num_filters=16, num_interactions=2)
        >>> z, batch = torch.tensor([8, 1, 1, 6, 0]), torch.tensor([0, 0, 0, 1, 2])
        >>> model(z, torch.randn(5, 3), batch, num_graphs=3).shape
        torch.Size([3, 1])
    """

    initial_atomref: Tensor | None
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
    ) -> None:
        super().__init__()
        require_readout(readout)
        if (mean is None) != (std is None):
            raise ValueError(f"mean is {mean} and std is {std}; give both or none.")
        self.hidden_channels = hidden_channels
        self.num_filters = num_filters
        self.num_interactions = num_interactions
        self.num_gaussians = num_gaussians
        self.cutoff = cutoff
        self.readout = readout
        self.dipole = dipole
        self.mean = mean
        self.std = std
        self.embedding = nn.Embedding(MAX_Z, hidden_channels, padding_idx=0)
        self.interaction_graph = interaction_graph or KNNInteractionGraph(max_num_neighbors, cutoff)
        self.distance_expansion = GaussianSmearing(0.0, cutoff, num_gaussians)
        self.envelope = envelope or CosineEnvelope(cutoff)
        self.interactions = nn.ModuleList(
            InteractionBlock(hidden_channels, num_gaussians, num_filters, stable_softplus)
            for _ in range(num_interactions)
        )
        self.lin1 = nn.Linear(hidden_channels, hidden_channels // 2)
        self.act = ShiftedSoftplus(stable_softplus)
        self.lin2 = nn.Linear(hidden_channels // 2, 1)
        if dipole:
            self.register_buffer("atomic_mass", torch.tensor(ATOMIC_MASSES, dtype=torch.float64))
        self.register_buffer("initial_atomref", None if atomref is None else atomref.view(-1, 1))
        self.atomref = None if atomref is None else nn.Embedding(MAX_Z, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights as the reference does: Xavier-uniform, biases zero, embeddings normal."""
        self.embedding.reset_parameters()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.atomref is not None and self.initial_atomref is not None:
            with torch.no_grad():
                self.atomref.weight.copy_(self.initial_atomref)

    def features(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, r: Tensor, half_list: bool, edge_shift: Tensor | None
    ) -> Tensor:
        """The atoms' features after all blocks. [num_atoms, hidden_channels]"""
        blocks = list(self.interactions)
        ours = [block for block in blocks if type(block) is InteractionBlock]
        networks = networks_in_one_pass(ours, [block.mlp for block in ours], r)
        is_one_pass = networks is not None and len(ours) == len(blocks)
        edges = Edges.of(edge_index, z.size(0), half_list, with_plans=not is_one_pass)
        if networks is None or not is_one_pass:
            rbf = self.distance_expansion(r)  # [num_edges, num_gaussians]
            envelope = self.envelope(r).unsqueeze(1)  # [num_edges, 1]
            x = self.embedding(z)  # [num_atoms, hidden_channels]
            for block in blocks:
                x = x + block(x, rbf, envelope, edges)
            return x
        column = DistanceColumn.of(self.distance_expansion, self.envelope, r, edges, z.size(0))
        x = self.embedding(z)
        for block, network in zip(blocks, networks, strict=True):
            filters = OnePassFilters(network=network, column=column)
            x = x + block(x, column.expansion, column.envelope, edges, filters)
        return x

    def read_out(self, x: Tensor, z: Tensor, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor) -> Tensor:
        """The molecules' dipole moments, or what their atoms' scaled and shifted outputs make. [num_graphs, 1]"""
        if self.dipole:
            mass = self.atomic_mass[z].unsqueeze(1).to(pos.dtype)  # [num_atoms, 1]
            return dipole_magnitude(x, pos, mass, batch, num_graphs, nodes_mask)
        if self.mean is not None and self.std is not None:
            x = x * self.std + self.mean
        if self.atomref is not None:
            x = x + self.atomref(z)
        return super().read_out(x, z, pos, batch, num_graphs, nodes_mask)

    def extra_repr(self) -> str:
        return (
            f"hidden_channels={self.hidden_channels}, num_filters={self.num_filters}, "
            f"num_interactions={self.num_interactions}, num_gaussians={self.num_gaussians}, cutoff={self.cutoff}"
        )
