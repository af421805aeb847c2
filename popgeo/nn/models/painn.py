"""PaiNN: messages of scalars, and of vectors that turn with the molecule (arXiv:2102.03150)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from popgeo.did_you_mean import names_arguments
from popgeo.nn.atom_edges import Edges, directions
from popgeo.nn.filter_grid import FilterNetworks, GridFilters, is_hooked
from popgeo.nn.models.atom_model import AtomModel
from popgeo.nn.radial import BesselBasis, envelope_for
from popgeo.ops.cfconv import vector_messages
from popgeo.ops.half_precision import in_float32

# Added to the squared length of a vector, because the square root has no slope at 0: a zero vector has length 0.0001.
SQUARED_LENGTH_OF_NOTHING = 1e-8

# Smaller weights, because vectors multiply each other in every update. With the weights of the other layers, forces of
# ethanol (examples/forces_ethanol.py) had an error of 0.098 eV/angstrom after 1,200 updates; with these weights, 0.055.
GAIN_OF_A_BLOCK = 0.3


class VectorMessage(nn.Module):
    """The messages from an atom's neighbors to its scalars and vectors: eq. 7 and 8."""

    def __init__(self, hidden_channels: int, num_radial: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(
            nn.Linear(hidden_channels, hidden_channels), nn.SiLU(), nn.Linear(hidden_channels, 3 * hidden_channels)
        )
        self.filter = nn.Linear(num_radial, 3 * hidden_channels)

    def forward(
        self, s: Tensor, v: Tensor, w: Tensor | GridFilters, direction: Tensor, edges: Edges
    ) -> tuple[Tensor, Tensor]:
        """Return the sums to add to scalars [num_nodes, hidden] and to vectors [num_nodes, 3, hidden].

        Args:
            s: Scalars. [num_nodes, hidden]
            v: Vectors. [num_nodes, 3, hidden]
            w: Filters of each edge, or on a grid. [num_edges, 3 * hidden]
            direction: Unit vector of each edge. [num_edges, 3]
            edges: Ends of the edges.
        """
        phi_s, phi_vv, phi_vs = self.phi(s).chunk(3, dim=1)  # each [num_nodes, hidden]
        # A stack, unlike a concatenation, has derivatives of any order without padding by zeros.
        axes = (v * phi_vv.unsqueeze(1)).unbind(1)
        sent = torch.stack([phi_s, *axes, phi_vs], dim=1).flatten(1)  # [num_nodes, 5 * hidden]
        if isinstance(w, GridFilters):
            sums = w.convolve(sent, direction)
        else:
            sums = vector_messages(edges.convolve, sent, w, direction)
        ds, dv = sums.split([s.size(1), 3 * s.size(1)], dim=1)
        return ds, dv.unflatten(1, (3, -1))


class VectorUpdate(nn.Module):
    """The update of an atom's scalars by its vectors, and of its vectors by its scalars: eq. 9 and 10."""

    def __init__(self, hidden_channels: int) -> None:
        super().__init__()
        self.u = nn.Linear(hidden_channels, hidden_channels, bias=False)
        self.v = nn.Linear(hidden_channels, hidden_channels, bias=False)
        self.a = nn.Sequential(
            nn.Linear(2 * hidden_channels, hidden_channels), nn.SiLU(), nn.Linear(hidden_channels, 3 * hidden_channels)
        )

    def forward(self, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums to add to scalars [num_nodes, hidden] and to vectors [num_nodes, 3, hidden]."""
        u_v, v_v = self.u(v), self.v(v)
        length = _lengths(v_v)  # [num_nodes, hidden]
        a_vv, a_sv, a_ss = self.a(torch.stack([s, length], dim=1).flatten(1)).chunk(3, dim=1)
        return a_ss + a_sv * (u_v * v_v).sum(1), a_vv.unsqueeze(1) * u_v


@in_float32
def _lengths(v: Tensor) -> Tensor:
    """Return the lengths of vectors, differentiable also at 0: [num_nodes, 3, hidden] -> [num_nodes, hidden]."""
    return (v.square().sum(1) + SQUARED_LENGTH_OF_NOTHING).sqrt()


@names_arguments
class PaiNN(AtomModel):
    """A model that predicts a property of each molecule from atomic numbers and positions (arXiv:2102.03150).

    Each atom has scalars, which do not change when the molecule turns, and vectors, which turn with it. So messages
    between pairs are enough for the prediction to depend on angles. Atoms of number 0 are padding: their embedding is
    zero and they neither send nor receive.

    Args:
        hidden_channels: Number of scalars, and of vectors, of an atom.
        num_interactions: Blocks of a message and an update.
        num_radial: Functions that expand a distance.
        cutoff: Longest interaction, in the unit of the positions.
        interaction_graph: Module that turns positions into edges. Default: `KNNInteractionGraph(max_num_neighbors,
            cutoff)`.
        max_num_neighbors: Edges of each atom; used without an `interaction_graph`.
        readout: Reduction of a molecule's atoms: `"add"`, `"mean"` or `"max"`.
        atomref: Energy of a single atom of each element, added to the atom's output; `element_energies` computes it.
            [100] or [100, 1]
        envelope: Module that ends the filters, 0 from the cutoff on. Default: `CosineEnvelope(cutoff)`.
        filters: `"grid"` evaluates the filter networks at a few hundred distances and interpolates, which is as exact
            as float32 and several times as fast (`refine_filters`); `"edges"` evaluates them at each edge.

    Raises:
        ValueError: the readout or the choice of filters is unknown, or the envelope is not 0 at the cutoff.

    Example:
        >>> model = PaiNN(hidden_channels=16, num_interactions=2)
        >>> z, batch = torch.tensor([8, 1, 1, 6, 0]), torch.tensor([0, 0, 0, 1, 2])
        >>> model(z, torch.randn(5, 3), batch, num_graphs=3).shape
        torch.Size([3, 1])
    """

    shown = "hidden_channels", "num_interactions", "num_radial", "cutoff"

    def __init__(
        self,
        hidden_channels: int = 128,
        num_interactions: int = 3,
        num_radial: int = 20,
        cutoff: float = 5.0,
        interaction_graph: Callable[..., tuple[Tensor, Tensor]] | None = None,
        max_num_neighbors: int = 32,
        readout: str = "add",
        *,
        atomref: Tensor | None = None,
        envelope: nn.Module | None = None,
        filters: str = "grid",
    ) -> None:
        super().__init__(hidden_channels, cutoff, interaction_graph, max_num_neighbors, readout, filters)
        self.num_interactions, self.num_radial = num_interactions, num_radial
        self.distance_expansion = BesselBasis(cutoff, num_radial)
        self.envelope = envelope_for(cutoff, envelope)
        self.messages = nn.ModuleList(VectorMessage(hidden_channels, num_radial) for _ in range(num_interactions))
        self.updates = nn.ModuleList(VectorUpdate(hidden_channels) for _ in range(num_interactions))
        self._add_output(nn.SiLU(), atomref)

    def reset_parameters(self) -> None:
        """Draw weights as in `SchNet`, but smaller ones in the last layer of each block."""
        super().reset_parameters()
        for message, update in zip(self.messages, self.updates, strict=True):
            for last in (message.get_parameter("phi.2.weight"), update.get_parameter("a.2.weight")):
                nn.init.xavier_uniform_(last, gain=GAIN_OF_A_BLOCK)

    def features(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, r: Tensor, half_list: bool, edge_shift: Tensor | None
    ) -> Tensor:
        """Return the atoms' scalars after all blocks. [num_atoms, hidden_channels]."""
        edges = Edges.of(edge_index, z.size(0), half_list)
        direction = directions(pos, edge_index, r, self.cutoff, edge_shift)  # [num_edges, 3]
        grids = None if is_hooked(self.messages) else self.grid_filters(r, edges, z.size(0))
        filters = self.filter_networks().at(r) if grids is None else grids  # [num_edges, 3 * hidden_channels]
        s = self.embedding(z)  # [num_nodes, hidden_channels]
        v = s.new_zeros(s.size(0), 3, s.size(1))
        for message, update, w in zip(self.messages, self.updates, filters, strict=True):
            ds, dv = message(s, v, w, direction, edges)
            s, v = s + ds, v + dv
            ds, dv = update(s, v)
            s, v = s + ds, v + dv
        return s

    def filter_networks(self) -> FilterNetworks:
        """Return the networks that make the filters of the blocks."""
        networks = [message.get_submodule("filter") for message in self.messages]
        return FilterNetworks(
            expand=self.distance_expansion, envelope=self.envelope, networks=networks, cutoff=self.cutoff
        )
