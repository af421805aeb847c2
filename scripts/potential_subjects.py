"""Small models of MACE, NequIP and SchNetPack with random weights, as subjects of the conformance kit.

Each is called with the dictionary of its framework, made from the kit's batches. In these batches padding edges are
loops of length 0 on padding atoms, and the last graphs may have no atom. For a row "with popgeo's padding", the padding
is that of the loaders of `popgeo.potentials`: padding edges are longer than the cutoff, and the last graph has an atom.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from popgeo.testing import ModelSubject

CUTOFF = 4.0


def clusters() -> list[Data]:
    """Return four clusters of atoms of two kinds, with both directions of all pairs within the cutoff."""
    draw, made = torch.Generator().manual_seed(0), []
    for number in (4, 6, 3, 5):
        pos = 2.0 * torch.randn(number, 3, generator=draw)
        apart = torch.cdist(pos, pos) + 2 * CUTOFF * torch.eye(number)
        kinds = torch.randint(2, (number,), generator=draw)
        made.append(Data(z=kinds, pos=pos, edge_index=(apart < CUTOFF).nonzero().T.contiguous()))
    return made


class OfFramework(nn.Module):
    """A framework's model behind one way of calling.

    Args:
        model: The framework's.
        is_padded_for: Whether padding edges lie beyond the cutoff, and the last graph has an atom.
    """

    def __init__(self, model: nn.Module, is_padded_for: bool) -> None:
        super().__init__()
        self.model, self.is_padded_for = model, is_padded_for

    def shift(self, batch: Batch) -> Tensor:
        """Return the shift of each edge's vector, not 0 for loops, which are padding; shape [num_edges, 3]."""
        src, dst = batch.edge_index
        far = torch.tensor([2 * CUTOFF, 0.0, 0.0], dtype=batch.pos.dtype)
        return ((src == dst) & self.is_padded_for).unsqueeze(1) * far

    def owner(self, batch: Batch) -> Tensor:
        """Return the graph of each atom, shape [num_nodes]."""
        owner = batch.batch.clone()
        if self.is_padded_for and "nodes_mask" in batch:
            owner[-1] = torch.where(batch.nodes_mask[-1], owner[-1], batch.num_graphs - 1)
        return owner

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        found = self.ask(batch)
        return {name: found[name] for name in ("energy", "forces")}

    def ask(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError


class OfMACE(OfFramework):
    def ask(self, batch: Batch) -> dict[str, Tensor]:
        shift = self.shift(batch)
        given = {
            "positions": batch.pos.requires_grad_(),
            "node_attrs": torch.eye(2, dtype=batch.pos.dtype)[batch.z],
            "edge_index": batch.edge_index,
            "shifts": shift,
            "unit_shifts": torch.zeros_like(shift),
            "cell": torch.eye(3, dtype=batch.pos.dtype).repeat(batch.num_graphs, 1),
            "batch": self.owner(batch),
            "ptr": batch.ptr,
            "head": torch.zeros(batch.num_graphs, dtype=torch.long),
        }
        return self.model(given, training=True)


class OfNequIP(OfFramework):
    def ask(self, batch: Batch) -> dict[str, Tensor]:
        cells = torch.eye(3, dtype=torch.float64).expand(batch.num_graphs, 3, 3)
        given = {
            "pos": batch.pos.double(),
            "atom_types": batch.z,
            "edge_index": batch.edge_index,
            "edge_cell_shift": self.shift(batch).double(),
            "cell": cells.contiguous(),
            "batch": self.owner(batch),
            "num_atoms": batch.ptr.diff(),
        }
        found = self.model(given)
        return {"energy": found["total_energy"], "forces": found["forces"]}


class OfSchNetPack(OfFramework):
    def ask(self, batch: Batch) -> dict[str, Tensor]:
        centre, neighbor = batch.edge_index
        given = {
            "_atomic_numbers": batch.z + 1,
            "_positions": batch.pos,
            "_idx_i": centre,
            "_idx_j": neighbor,
            "_offsets": self.shift(batch),
            "_idx_m": self.owner(batch),
            "_n_atoms": batch.ptr.diff(),
        }
        return self.model(given)


def mace() -> nn.Module:
    """Return a MACE with two layers and l up to 1."""
    import numpy as np
    from mace import modules  # sets the variable that lets e3nn 0.4 load its constants with torch 2.6 and later

    # isort: split
    from e3nn import o3

    block = modules.RealAgnosticResidualInteractionBlock
    return modules.ScaleShiftMACE(
        r_max=CUTOFF,
        num_bessel=4,
        num_polynomial_cutoff=5,
        max_ell=1,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=2,
        hidden_irreps=o3.Irreps("4x0e+4x1o"),
        MLP_irreps=o3.Irreps("4x0e"),
        atomic_energies=np.array([0.5, -1.0]),
        avg_num_neighbors=5.0,
        atomic_numbers=[13, 29],
        correlation=2,
        gate=nn.functional.silu,
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )


def nequip() -> nn.Module:
    """Return a NequIP with two layers and l up to 1, in float64."""
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state()
    return NequIPGNNModel(
        seed=0,
        model_dtype="float64",
        type_names=["Al", "Cu"],
        r_max=CUTOFF,
        num_bessels=4,
        num_layers=2,
        l_max=1,
        parity=False,
        num_features=4,
        radial_mlp_depth=1,
        radial_mlp_width=8,
        avg_num_neighbors=5.0,
        compile_mode="eager",
    )


def schnetpack(kind: str) -> nn.Module:
    """Return a model of SchNetPack with two interactions and 8 channels."""
    import schnetpack as spk

    radial, envelope = spk.nn.GaussianRBF(n_rbf=6, cutoff=CUTOFF), spk.nn.CosineCutoff(CUTOFF)
    return spk.model.NeuralNetworkPotential(
        getattr(spk.representation, kind)(8, 2, radial_basis=radial, cutoff_fn=envelope),
        input_modules=[spk.atomistic.PairwiseDistances()],
        output_modules=[spk.atomistic.Atomwise(n_in=8, output_key="energy"), spk.atomistic.Forces()],
    )


MODELS: dict[str, tuple[str, type[OfFramework], Callable[[], nn.Module]]] = {
    "MACE": ("mace", OfMACE, mace),
    "NequIP": ("nequip", OfNequIP, nequip),
    "SchNetPack SchNet": ("schnetpack", OfSchNetPack, lambda: schnetpack("SchNet")),
    "SchNetPack PaiNN": ("schnetpack", OfSchNetPack, lambda: schnetpack("PaiNN")),
}


def subjects() -> Iterator[tuple[str, Callable[[], ModelSubject]]]:
    """Yield the name and the factory of each subject whose framework is installed."""
    for name, (package, kind, make) in MODELS.items():
        if importlib.util.find_spec(package) is None:
            warnings.warn(f"{package} is not installed: {name} is not tried.", stacklevel=2)
            continue
        for padded in (False, True):

            def subject(kind: Any = kind, make: Any = make, padded: bool = padded) -> ModelSubject:
                return ModelSubject(
                    what=kind(make(), padded),
                    graphs=tuple(clusters()),
                    call=lambda model, batch: model(batch),
                    cutoff=CUTOFF,
                )

            yield name + " with popgeo's padding" * padded, subject
