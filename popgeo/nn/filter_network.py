"""Which modules stand for a filter network and for Gaussians that an interaction takes in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from popgeo.nn.radial import GaussianSmearing, ShiftedSoftplus
from popgeo.ops.filter_network import Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction import InteractionPlan, serves
from popgeo.ops.interaction_call import MAX_LAYERS

_ACTIVATIONS = {
    nn.SiLU: Activation.SILU,
    nn.ReLU: Activation.RELU,
    nn.Tanh: Activation.TANH,
    nn.Sigmoid: Activation.SIGMOID,
}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What all blocks of a model make their filters from, in one pass over the edges."""

    expansion: Tensor
    gaussians: Gaussians | None
    envelope: Tensor
    plan: InteractionPlan

    @classmethod
    def of(
        cls, expand: nn.Module, envelope: Tensor, r: Tensor, ends: tuple[Tensor, Tensor], num_nodes: int
    ) -> "Filters":
        """Gaussians are made within the pass; whatever else expands distances [num_edges] is asked for its rows."""
        gaussians = gaussians_of(expand)
        plan = InteractionPlan.of(*ends, (num_nodes, num_nodes), envelope, r)
        return cls(expansion=expand(r) if gaussians is None else r, gaussians=gaussians, envelope=envelope, plan=plan)


def filter_network_of(module: nn.Module) -> FilterNetwork | None:
    """The network that a sequence of linear layers with one activation between them is; None for other modules.

    Example:
        >>> network = filter_network_of(nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)))
        >>> len(network.weights), network.activation.name
        (2, 'SILU')
    """
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
    """Whether somebody wants to be told when one of these modules, or a part of it, is called."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for module in modules
        for part in module.modules()
    )


def networks_in_one_pass(
    blocks: Iterable[nn.Module], mlps: Iterable[nn.Module], r: Tensor
) -> list[FilterNetwork] | None:
    """The filter networks of blocks whose interaction can run in one pass here and now; None where one cannot."""
    if is_hooked(blocks):
        return None
    networks = [filter_network_of(mlp) for mlp in mlps]
    found = [network for network in networks if network is not None]
    tensors = [t for network in found for t in (*network.weights, *network.biases) if t is not None]
    return found if len(found) == len(networks) and serves(r, *tensors) else None


def _activation_of(module: nn.Module) -> Activation | None:
    if type(module) is ShiftedSoftplus and module.stable:
        return Activation.SHIFTED_SOFTPLUS
    if type(module) is nn.Softplus and (module.beta, module.threshold) == (1, 20):
        return Activation.SOFTPLUS
    return _ACTIVATIONS.get(type(module))
