"""SchNetPack's SchNet and PaiNN with filters on a grid, and with each interaction as one operation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from schnetpack import properties
from schnetpack.nn.cutoff import CosineCutoff, MollifierCutoff
from schnetpack.representation import PaiNN, SchNet
from torch import Tensor, nn

from popgeo.nn.atom_edges import Edges
from popgeo.nn.filter_grid import FilterNetworks, FilterNetworksMixin, GridFilters


def in_one_pass(model: nn.Module) -> nn.Module:
    """Make SchNetPack's SchNet or PaiNN interpolate filters and sum messages in one pass, and return the model.

    Weights, `state_dict` and results stay the same. If `model` is a representation, it is not changed; the returned
    representation shares its weights. The model can be trained on forces, also in eager mode. Hooks on the modules that
    compute messages are no longer called. A file of the whole model, unlike a file of its `state_dict`, needs popgeo to
    be read.

    Args:
        model: A `NeuralNetworkPotential`, a task, or a representation.

    Raises:
        ValueError: the model has no SchNet or PaiNN, or its cutoff is neither the cosine nor the mollifier.
    """
    classes: dict[type, Any] = {SchNet: OnePassSchNet, PaiNN: OnePassPaiNN}
    found: list[Any] = [one for one in model.modules() if type(one) in (*classes, *classes.values())]
    if not found:
        raise ValueError(f"There is no SchNet or PaiNN of SchNetPack in this {type(model).__name__}.")
    for representation in found:
        if not isinstance(representation.cutoff_fn, CosineCutoff | MollifierCutoff):
            raise ValueError(f"{type(representation.cutoff_fn).__name__} is not CosineCutoff or MollifierCutoff.")
    new: dict[Any, Any] = {one: classes[type(one)](one) for one in found if type(one) in classes}
    for parent in list(model.modules()):
        parent._modules.update({name: new[part] for name, part in parent._modules.items() if part in new})
    return new.get(model, model)


class _GridRepresentation(FilterNetworksMixin):
    """A SchNetPack representation with filters on a grid, or SchNetPack's own code if no grid is used."""

    radial_basis: nn.Module
    cutoff_fn: Any
    embedding: Any
    electronic_embeddings: Any
    interactions: Any
    mixing: Any
    filter_net: nn.Module
    n_atom_basis: int

    def __init__(self, plain: nn.Module) -> None:
        """Copy the modules, weights, hooks and settings of a representation."""
        nn.Module.__init__(self)
        vars(self).update(vars(plain))
        self.cutoff_of_grid = float(self.cutoff_fn.cutoff)

    def refine_filters(self) -> None:
        """Refine the filters with SchNetPack's current cutoff, which a checkpoint may have changed."""
        self.cutoff_of_grid = float(self.cutoff_fn.cutoff)
        super().refine_filters()

    def grids(self, inputs: dict[str, Tensor], distances: Tensor) -> list[GridFilters] | None:
        """Return the filters of each network on a grid, or None if the networks run at each edge."""
        ends = torch.stack([inputs[properties.idx_j], inputs[properties.idx_i]])
        num_atoms = inputs[properties.Z].shape[0]
        return self.grid_filters(distances, Edges.of(ends, num_atoms, half_list=False, with_plans=False), num_atoms)

    def made_by(self, networks: Sequence[nn.Module]) -> FilterNetworks:
        """Return `FilterNetworks` with SchNetPack's basis and cutoff."""
        return FilterNetworks(
            expand=self.radial_basis, envelope=self.cutoff_fn, networks=networks, cutoff=self.cutoff_of_grid
        )


class OnePassSchNet(_GridRepresentation, SchNet):
    """SchNetPack's SchNet, with eq. 2 of arXiv:1706.08566 as one operation."""

    def filter_networks(self) -> FilterNetworks:
        """Return the filter networks of all blocks."""
        return self.made_by([block.filter_network for block in self.interactions])

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the atoms' features to a batch, as SchNetPack does."""
        grids = self.grids(inputs, inputs[properties.Rij].norm(dim=1))
        if grids is None:
            return SchNet.forward(self, inputs)
        x = self.embedding(inputs[properties.Z])
        for embedding in self.electronic_embeddings:
            x = x + embedding(x, inputs)
        for block, filters in zip(self.interactions, grids, strict=True):
            x = x + block.f2out(filters.convolve(block.in2f(x)))
        inputs["scalar_representation"] = x
        return inputs


class OnePassPaiNN(_GridRepresentation, PaiNN):
    """SchNetPack's PaiNN, with eq. 7 and 8 of arXiv:2102.03150 as one operation."""

    def filter_networks(self) -> FilterNetworks:
        """Return the network that makes the filters of all blocks."""
        return self.made_by([self.filter_net])

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the atoms' scalars and vectors to a batch, as SchNetPack does."""
        vectors = inputs[properties.Rij]
        distances = vectors.norm(dim=1)
        grids = self.grids(inputs, distances)
        if grids is None:
            return PaiNN.forward(self, inputs)
        direction, q = vectors / distances.unsqueeze(1), self.embedding(inputs[properties.Z])
        for embedding in self.electronic_embeddings:
            q = q + embedding(q, inputs)
        q, size = q.unsqueeze(1), self.n_atom_basis
        mu = q.new_zeros(q.shape[0], 3, size)
        tables = grids[0].table.split(3 * size, dim=1)
        for number, (interact, mix) in enumerate(zip(self.interactions, self.mixing, strict=True)):
            scalars, along, across = interact.interatomic_context_net(q).squeeze(1).split(size, dim=-1)
            axes = (mu * across.unsqueeze(1)).unbind(1)
            sent = torch.stack([scalars, *axes, along], dim=1).flatten(1)
            # In SchNetPack the section for edge directions comes before that for vectors, in the operation after it.
            of_scalars, of_edges, of_vectors = tables[0 if self.share_filters else number].chunk(3, dim=1)
            table = torch.cat([of_scalars, of_vectors, of_edges], dim=1)
            sums = replace(grids[0], table=table).convolve(sent, direction)
            ds, dmu = sums.split([size, 3 * size], dim=1)
            q, mu = mix(q + ds.unsqueeze(1), mu + dmu.unflatten(1, (3, size)))
        inputs["scalar_representation"], inputs["vector_representation"] = q.squeeze(1), mu
        return inputs
