"""Force fields, which combine a model of atoms with reference energies and a scale, and their files."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo.convert.atoms import with_pairs
from popgeo.convert.periodic_pairs import require_elements
from popgeo.elements import SYMBOLS
from popgeo.nn.atom_targets import MAX_Z
from popgeo.nn.models.atom_model import AtomModel
from popgeo.nn.models.painn import PaiNN
from popgeo.nn.models.schnet import SchNet
from popgeo.nn.neighbor_rule import NeighborRule
from popgeo.nn.readout import READOUTS
from popgeo.torch_archive import read_format, write_format

MODELS: dict[str, type[AtomModel]] = {"schnet": SchNet, "painn": PaiNN}
"""Networks of force fields, by their names on the command line."""
_KIND, _VERSION = "force field", 2


class ForceField(nn.Module):
    """An energy model: the sum of float64 reference energies of elements and a network's binding energy.

    If a structure has an element that was not in the training set, its energy and forces are NaN.

    Args:
        name: Name of the network, a key of `MODELS`.
        settings: Arguments of the network, such as `{"hidden_channels": 64, "cutoff": 5.0}`.
        references: Reference energy of each element, NaN for unknown elements. [100]
        scale: Factor of the network's output, such as the root mean square of the forces.

    Attributes:
        errors: Errors in validation, by their names and units, such as `{"forces meV/A MAE": 12.5}`.

    Raises:
        ValueError: the network does not exist, or its cutoff or interaction graph is not allowed.

    Example:
        >>> references = torch.full((100,), torch.nan)
        >>> references[[0, 1, 8]] = torch.tensor([0.0, -13.6, -2041.0])
        >>> field = ForceField("schnet", {"hidden_channels": 8, "cutoff": 5.0}, references)
        >>> field.elements
        [1, 8]
    """

    references: Tensor
    scale: Tensor

    def __init__(self, name: str, settings: dict[str, Any], references: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.errors: dict[str, float] = {}
        if name not in MODELS:
            raise ValueError(f"There is no model {name!r}; the models are {', '.join(MODELS)}.")
        self.name, self.settings = name, dict(settings)
        self.net = MODELS[name](**settings)
        if not 0 < self.net.cutoff < torch.inf:
            raise ValueError(f"The cutoff is {self.net.cutoff}; it must be a positive number of angstrom.")
        rule = self.net.neighbor_rule
        if rule.cutoff < self.net.cutoff or (rule.max_num_neighbors is not None and not rule.is_default):
            raise ValueError(
                f"The settings have the interaction graph {rule.search}; a force field uses all neighbors within its "
                "cutoff, with images. Leave interaction_graph and max_num_neighbors out."
            )
        self.register_buffer("references", references.double())
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.get_default_dtype()))

    def __repr__(self) -> str:
        elements = " ".join(SYMBOLS[z] for z in self.elements)
        errors = ", ".join(f"{name} {value:.3g}" for name, value in self.errors.items())
        return (
            f"ForceField({self.name}, {sum(w.numel() for w in self.parameters()):,} weights of {self.scale.dtype}\n"
            f"  elements: {elements or 'none'}; cutoff: {self.cutoff:g} angstrom\n"
            "  units: energy eV, forces eV/A, stress eV/A^3, positions angstrom\n"
            f"  errors in validation: {errors or 'not known'})"
        )

    @property
    def cutoff(self) -> float:
        """Longest edge, in angstrom."""
        return self.net.cutoff

    @property
    def neighbor_rule(self) -> NeighborRule:
        """Rule that all pairs of atoms within the cutoff interact. Neighbor lists always contain these pairs."""
        return NeighborRule(cutoff=self.cutoff)

    @property
    def elements(self) -> list[int]:
        """Known atomic numbers."""
        return [z for z in self.references.isfinite().nonzero().flatten().tolist() if z > 0]

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor,
        edge_index: Tensor,
        *,
        num_graphs: int,
        edge_shift: Tensor | None = None,
        pbc: Tensor | None = None,
        cutoff: Tensor | None = None,
        binding_only: bool = False,
    ) -> Tensor:
        """Return energies in eV [num_graphs, 1]. The arguments are those of `SchNet`.

        With `binding_only` the reference energies are left out. Total energies, and differences of positions, are
        computed in float64.
        """
        given: dict[str, Any] = {"num_graphs": num_graphs, "edge_shift": edge_shift, "pbc": pbc, "cutoff": cutoff}
        energy = self.net(z, pos if binding_only else pos.double(), batch, edge_index, **given) * self.scale
        if binding_only:
            return energy
        of_elements = READOUTS["add"](self.references.index_select(0, z).unsqueeze(1), batch, num_graphs)
        # A factor, so that forces are NaN, too.
        return (energy * torch.where(of_elements.isnan(), torch.nan, 1.0)).double() + of_elements

    def prepared(self, structure: Data) -> Data:
        """Return a structure as model input: in float64, with its neighbors within the cutoff.

        Raises:
            ValueError: it has an element that was not in the training set, or neighbors cannot be listed; see
                `list_pairs`.
        """
        require_elements(structure.z.numpy(), self.elements)
        structure = structure.clone().apply(lambda part: part.double() if part.is_floating_point() else part)
        return with_pairs(structure, self.cutoff)

    def save(self, path: str | Path) -> None:
        """Write the file that `load` and `popgeo predict` read."""
        content = {"name": self.name, "settings": self.settings, "state_dict": self.state_dict()}
        content |= {"errors": self.errors}
        write_format(path, content, _KIND, _VERSION)

    @classmethod
    def load(cls, path: str | Path) -> "ForceField":
        """Return the force field of a file that `save` wrote. Nothing in the file is executed.

        Raises:
            ValueError: the file is damaged or of a different kind, or its settings do not fit its weights.
            OSError: the file cannot be read.
        """
        kept = read_format(path, _KIND, _VERSION)
        try:
            field = _like(kept["name"], kept["settings"], kept["state_dict"])
            field.load_state_dict(kept["state_dict"])
            field.errors = {str(name): float(error) for name, error in kept.get("errors", {}).items()}
        except Exception as error:  # wrong settings may raise any error
            reason = str(error) if type(error) is ValueError else f"an entry is missing or of a wrong kind: {error!r}"
            raise ValueError(f"{path} is not a force field of popgeo: {reason:.200}") from error
        return field.eval()


def _like(name: str, settings: dict[str, Any], state: dict[str, Tensor]) -> ForceField:
    """Return an untrained force field, after a check that its settings match the shapes of some weights.

    Raises:
        ValueError: the settings declare more layers than there are weights, or weights of different shapes.
    """
    elements = sum(tensor.numel() for tensor in state.values())
    for key, number in settings.items():
        most = len(state) if key == "num_interactions" else max(elements, 1000)
        # Otherwise a loop over layers might not end.
        if key.startswith(("num_", "max_num_", "hidden_")) and not 0 <= number <= most:
            raise ValueError(f"{key} is {number}; the weights in the file allow 0 to {most}")
    dtype, shapes = state["scale"].dtype, {key: tensor.shape for key, tensor in state.items()}
    with torch.device("meta"):
        declared = ForceField(name, settings, torch.zeros(MAX_Z)).state_dict()
    if {key: tensor.shape for key, tensor in declared.items()} != shapes:
        raise ValueError("its settings declare weights of different shapes")
    field = ForceField(name, settings, torch.zeros(MAX_Z)).to(dtype)
    field.references = field.references.double()
    return field
