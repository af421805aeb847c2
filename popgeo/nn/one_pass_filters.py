"""Which modules represent a filter network and for Gaussians, of which an interaction makes its own filters."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from popgeo.nn.atom_edges import Edges
from popgeo.nn.radial import GaussianSmearing, ShiftedSoftplus
from popgeo.ops.eager import is_plain
from popgeo.ops.filter_network import MAX_LAYERS, Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction import InteractionPlan, interaction, serves

_ACTIVATIONS = {kind.module: kind for kind in Activation if kind.module is not None} | {
    ShiftedSoftplus: Activation.SHIFTED_SOFTPLUS
}


@dataclass(frozen=True, kw_only=True)
class DistanceColumn:
    """What all blocks of a model make their filters from: distances, or rows where they are made from other things.

    Attributes:
        expansion: Distances [num_edges] if there are Gaussians, rows [num_edges, in] elsewhere.
        gaussians: What expands the distances, edge by edge.
        envelope: Factor of each filter. [num_edges]
        plan: Of the edges.
    """

    expansion: Tensor
    gaussians: Gaussians | None
    envelope: Tensor
    edges: Edges
    plan: InteractionPlan

    @classmethod
    def of(
        cls, expand: nn.Module, envelope: nn.Module, r: Tensor, cutoff: float, edges: Edges, num_nodes: int
    ) -> "DistanceColumn":
        """Gaussians are made within the interaction, so that their rows are never in memory.

        Only of energies alone a captured graph has the rows, once for all blocks, which the engine looks behind.
        """
        gaussians = gaussians_of(expand) if is_plain() or r.requires_grad else None
        expansion = expand(r) if gaussians is None else r
        factor = envelope(r)
        # Where an envelope has ended it has no slope either, so that absent edges cost forces nothing.
        takes_part = torch.where(r.detach() < cutoff, 1.0, factor.detach()) if r.requires_grad else None
        ends, sizes = (edges.neighbour, edges.centre), (num_nodes, num_nodes)
        plan = InteractionPlan.of(*ends, sizes, factor, r, takes_part)
        return cls(expansion=expansion, gaussians=gaussians, envelope=factor, edges=edges, plan=plan)


@dataclass(frozen=True, kw_only=True)
class OnePassFilters:
    """The filters of one block before they are made: an interaction makes them, edge by edge, as it needs them."""

    network: FilterNetwork
    column: DistanceColumn

    def convolve(self, x: Tensor, direction: Tensor | None = None) -> Tensor:
        """Sums x_j * w_ij over the neighbours j of each atom i; with directions, messages of scalars and vectors.

        [num_nodes, channels] -> the same shape, or [num_nodes, 5 * channels] -> [num_nodes, 4 * channels]
        """
        column, edges = self.column, self.column.edges
        return interaction(
            x,
            edges.neighbour,
            edges.centre,
            x.size(0),
            self.network,
            column.expansion,
            column.gaussians,
            column.envelope,
            direction=direction,
            half_list=edges.half_list,
            plan=column.plan,
        )


def filter_network_of(module: nn.Module) -> FilterNetwork | None:
    """The network that a linear layer is, or a sequence of them with one activation between; None for other modules.

    Example:
        >>> network = filter_network_of(nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)))
        >>> len(network.weights), network.activation.name
        (2, 'SILU')
    """
    if type(module) is nn.Linear:
        module = nn.Sequential(module)
    if type(module) is not nn.Sequential or len(module) % 2 == 0 or len(module) > 2 * MAX_LAYERS - 1:
        return None
    layers, between = [one for one in module if type(one) is nn.Linear], list(module)[1::2]
    in_turn = [type(one) is nn.Linear for one in module] == [i % 2 == 0 for i in range(len(module))]
    if not in_turn or any(0 in layer.weight.shape for layer in layers):
        return None
    kinds = {_activation_of(one) for one in between} or {Activation.RELU}
    kind = kinds.pop()
    if kinds or kind is None:
        return None
    return FilterNetwork(
        weights=[layer.weight for layer in layers], biases=[layer.bias for layer in layers], activation=kind
    )


def gaussians_of(module: nn.Module) -> Gaussians | None:
    """The Gaussians of a `GaussianSmearing`; None for other modules."""
    if type(module) is not GaussianSmearing or is_hooked([module]):
        return None
    return Gaussians(centres=module.offset, width=module.coeff)


def is_hooked(modules: Iterable[nn.Module]) -> bool:
    """Whether one of these modules, or a part of it, has a hook other than a capture's."""
    return any(
        getattr(hook, "__module__", "") != "popgeo.capture.recorder"
        for module in modules
        for part in module.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        for hook in hooks.values()
    )


def networks_in_one_pass(
    blocks: Iterable[nn.Module], mlps: Iterable[nn.Module], r: Tensor
) -> list[FilterNetwork] | None:
    """The filter networks of blocks whose interaction is one operation here and now; None if one cannot be."""
    if is_hooked(blocks):
        return None
    networks = [filter_network_of(mlp) for mlp in mlps]
    found = [network for network in networks if network is not None]
    tensors = [t for network in found for t in (*network.weights, *network.biases) if t is not None]
    return found if len(found) == len(networks) and serves(r, *tensors) else None


def _activation_of(module: nn.Module) -> Activation | None:
    steep = isinstance(module, nn.Softplus) and (module.beta, module.threshold) != (1, 20)
    unstable = isinstance(module, ShiftedSoftplus) and not module.stable
    return None if steep or unstable else _ACTIVATIONS.get(type(module))
