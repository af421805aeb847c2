"""SchNetPack's SchNet and PaiNN with each interaction as one operation: from the expansion of distances to sums."""

from typing import Any

import torch
from schnetpack import properties
from schnetpack.nn.activations import shifted_softplus
from schnetpack.nn.cutoff import CosineCutoff, MollifierCutoff
from schnetpack.representation import PaiNN, SchNet
from torch import Tensor, nn
from torch.nn import functional

from popgeo.ops.filter_network import Activation, FilterNetwork
from popgeo.ops.interaction import InteractionPlan, interaction

_ACTIVATIONS: dict[Any, Activation] = {
    shifted_softplus: Activation.SHIFTED_SOFTPLUS,
    **{getattr(functional, one.name.lower()): one for one in Activation if one is not Activation.SHIFTED_SOFTPLUS},
    **{one.function: one for one in Activation if one is not Activation.SHIFTED_SOFTPLUS},
}


def in_one_pass(model: nn.Module) -> nn.Module:
    """A model of SchNetPack whose SchNet or PaiNN makes filters, messages and sums in one pass, with what it had.

    The model itself is changed, and returned: its weights, its `state_dict` and its results stay. A representation by
    itself stays as it is; the returned one has the same weights. It trains on forces, in eager mode, too. Hooks on the
    parts that make filters or messages are no longer called, and a file of the whole model, unlike a file of its
    `state_dict`, is read only if popgeo is installed.

    Args:
        model: A `NeuralNetworkPotential`, a task, or a representation itself.

    Raises:
        ValueError: there is no SchNet or PaiNN in it, its cutoff is neither the cosine nor the mollifier, or the
            activation of its filters is none of `popgeo.ops.Activation`.
    """
    classes: dict[type, Any] = {SchNet: OnePassSchNet, PaiNN: OnePassPaiNN}
    found: list[Any] = [one for one in model.modules() if type(one) in (*classes, *classes.values())]
    if not found:
        raise ValueError(f"There is no SchNet or PaiNN of SchNetPack in this {type(model).__name__}.")
    for representation in found:
        if not isinstance(representation.cutoff_fn, CosineCutoff | MollifierCutoff):
            raise ValueError(
                f"The cutoff is {type(representation.cutoff_fn).__name__}; it must be CosineCutoff or MollifierCutoff."
            )
        if isinstance(representation, SchNet):
            for block in representation.interactions:
                _activation(block.filter_network[0].activation)
    new = {id(one): classes[type(one)](one) for one in found if type(one) in classes}
    for parent in list(model.modules()):
        for name, part in list(parent._modules.items()):
            if id(part) in new:
                setattr(parent, name, new[id(part)])
    return new.get(id(model), model)


class _Edges:
    """What all blocks make filters of, and the order in which an interaction goes through the edges."""

    def __init__(self, representation: Any, inputs: dict[str, Tensor]) -> None:
        vectors: Tensor = inputs[properties.Rij]
        self.sources, self.receivers = inputs[properties.idx_j], inputs[properties.idx_i]
        self.num_atoms = inputs[properties.Z].shape[0]
        distances = vectors.norm(dim=1)
        self.direction = vectors / distances.unsqueeze(1)
        self.expansion = representation.radial_basis(distances)
        self.envelope = representation.cutoff_fn(distances).clone()  # which SchNetPack writes to, and kernels read
        apart = distances.detach()
        within = torch.where(apart < representation.cutoff_fn.cutoff, 1.0, self.envelope.detach())
        sizes = self.num_atoms, self.num_atoms
        self.plan = InteractionPlan.of(self.sources, self.receivers, sizes, self.envelope, apart, within)

    def sums(self, x: Tensor, network: FilterNetwork, direction: Tensor | None = None) -> Tensor:
        """What the edges bring to each atom."""
        edges = self.sources, self.receivers, self.num_atoms, network, self.expansion
        return interaction(x, *edges, envelope=self.envelope, direction=direction, plan=self.plan)


def _share(new: nn.Module, plain: nn.Module) -> None:
    """Gives a new module the parts, weights, hooks and settings of a module; only the way it runs is different."""
    nn.Module.__init__(new)
    vars(new).update(vars(plain))


class OnePassSchNet(SchNet):
    """SchNetPack's SchNet, with eq. 2 of arXiv:1706.08566 as one operation."""

    def __init__(self, plain: SchNet) -> None:
        _share(self, plain)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adds the atoms' features to a batch, as SchNetPack does."""
        edges, x = _Edges(self, inputs), self.embedding(inputs[properties.Z])
        for embedding in self.electronic_embeddings:
            x = x + embedding(x, inputs)
        for block in self.interactions:
            first, last = block.filter_network
            network = FilterNetwork(
                weights=[first.weight, last.weight],
                biases=[first.bias, last.bias],
                activation=_activation(first.activation),
            )
            x = x + block.f2out(edges.sums(block.in2f(x), network))
        inputs["scalar_representation"] = x
        return inputs


class OnePassPaiNN(PaiNN):
    """SchNetPack's PaiNN, with eq. 7 and 8 of arXiv:2102.03150 as one operation."""

    def __init__(self, plain: PaiNN) -> None:
        _share(self, plain)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adds the atoms' scalars and vectors to a batch, as SchNetPack does."""
        edges, q = _Edges(self, inputs), self.embedding(inputs[properties.Z])
        for embedding in self.electronic_embeddings:
            q = q + embedding(q, inputs)
        q, size = q.unsqueeze(1), self.n_atom_basis
        mu = q.new_zeros(q.shape[0], 3, size)
        for number, (interact, mix) in enumerate(zip(self.interactions, self.mixing, strict=True)):
            scalars, along, vectors = interact.interatomic_context_net(q).squeeze(1).split(size, dim=-1)
            axes = (mu * vectors.unsqueeze(1)).unbind(1)
            sent = torch.stack([scalars, *axes, along], dim=1).flatten(1)
            sums = edges.sums(sent, self._filters(0 if self.share_filters else number), edges.direction)
            of_scalars, of_vectors = sums.split([size, 3 * size], dim=1)
            q, mu = mix(q + of_scalars.unsqueeze(1), mu + of_vectors.unflatten(1, (3, size)))
        inputs["scalar_representation"], inputs["vector_representation"] = q.squeeze(1), mu
        return inputs

    def _filters(self, number: int) -> FilterNetwork:
        """Those of a block; SchNetPack has what goes along the edge before vectors, the operation behind them."""
        rows = slice(3 * self.n_atom_basis * number, 3 * self.n_atom_basis * (number + 1))
        weight, bias = (
            torch.cat([part[i] for i in (0, 2, 1)])
            for part in (one[rows].chunk(3) for one in (self.filter_net.weight, self.filter_net.bias))
        )
        return FilterNetwork(weights=[weight], biases=[bias], activation=Activation.RELU)


def _activation(function: Any) -> Activation:
    if function not in _ACTIVATIONS:
        raise ValueError(f"The activation of the filters is {function}; it must be one of {[*Activation.__members__]}.")
    return _ACTIVATIONS[function]
