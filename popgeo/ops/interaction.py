"""From distances to messages in one pass over the edges: SchNet's and PaiNN's interactions, forward and backward."""

from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.ops import interaction_call
from popgeo.ops.eager import is_eager, is_written_down
from popgeo.ops.filter_network import FilterNetwork, Gaussians
from popgeo.ops.interaction_call import Call
from popgeo.ops.interaction_checks import check_call
from popgeo.ops.interaction_ops import interact, make_plan


@dataclass(frozen=True, kw_only=True, eq=False)
class InteractionPlan:
    """The order in which an interaction goes through its edges, made once for all layers on the same edges.

    It belongs to the tensors that it was made from and is refused, and made again, if they differ or were changed.

    Args:
        tensor: As the compiled kernels read it. int32
        made_from: Source, destination and envelope, and their versions.
        sizes: Sources and receivers.
    """

    tensor: Tensor
    made_from: tuple[tuple[Tensor | None, int], ...]
    sizes: tuple[int, int]

    @classmethod
    def of(
        cls,
        src: Tensor,
        dst: Tensor,
        sizes: tuple[int, int],
        envelope: Tensor | None = None,
        distances: Tensor | None = None,
        takes_part: Tensor | None = None,
    ) -> "InteractionPlan":
        """The plan of these edges, without those at which the envelope is exactly 0 and has no gradient.

        If something is captured, so is this.

        Args:
            src: Source of each edge. [num_edges]
            dst: Destination of each edge. [num_edges]
            sizes: Sources and receivers.
            envelope: Factor of each edge. [num_edges]
            distances: Put edges of like distance next to each other, where many Gaussians are 0. [num_edges]
            takes_part: 0 at edges to leave out although the envelope has a gradient, if it is known to be 0, too.
                [num_edges]

        Raises:
            ValueError: an index is out of range.
        """
        skips = takes_part
        if skips is None and envelope is not None and not _needs_gradient(envelope):
            skips = envelope.detach().contiguous()
        by_distance = None if distances is None else distances.detach().contiguous()
        tensor = make_plan(src, dst, skips, by_distance, *sizes)
        given = (src, dst, envelope)
        return cls(tensor=tensor, made_from=tuple((one, _version(one)) for one in given), sizes=sizes)

    def is_of(self, src: Tensor, dst: Tensor, sizes: tuple[int, int], envelope: Tensor | None) -> bool:
        """Whether it was made from these tensors, and none was changed in place since."""
        return sizes == self.sizes and all(
            one is other and _version(one) == version
            for one, (other, version) in zip((src, dst, envelope), self.made_from, strict=True)
        )


def interaction(
    x: Tensor,
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    network: FilterNetwork,
    expansion: Tensor,
    gaussians: Gaussians | None = None,
    envelope: Tensor | None = None,
    *,
    direction: Tensor | None = None,
    half_list: bool = False,
    plan: InteractionPlan | None = None,
) -> Tensor:
    """Make a filter for each edge, multiply the features of its source by it and sum them at its destination.

    out[dst[e]] += x[src[e]] * network(expansion[e]) * envelope[e], eq. 2 of SchNet (arXiv:1706.08566). On processors
    with fused multiply-adds, in float32, edges go through all of it block by block, in cache, and of the backward pass
    only the filters are kept. So is the backward pass of the backward pass, which forces are trained by. Edges at which
    the envelope is exactly 0 cost nothing and carry nothing, not even a NaN. The result has the same bits for any
    number of threads. A captured graph holds it as one operation. Elsewhere, for third derivatives, and for second ones
    by weights alone, it is what plain torch computes.

    With directions messages are of scalars and vectors, eq. 7 and 8 of PaiNN (arXiv:2102.03150): a third of the
    filters' channels is for each of scalars, vectors, and scalars that become vectors along the edge.

    Args:
        x: Features of the sources. [num_sources, channels]; with directions the scalars, the three axes of the vectors,
            and what goes along the edge, side by side. [num_sources, 5 * channels / 3]
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        num_nodes: Rows of the result; never read from `dst`, so the shape is static.
        network: Makes the filters.
        expansion: Inputs of the network, or distances where Gaussians expand them. [num_edges, in] or [num_edges]
        gaussians: What expands distances.
        envelope: Factor of each filter. [num_edges]
        direction: Unit vector from the destination to the source, turned around for the way back. [num_edges, 3]
        half_list: Each edge represents both directions: messages also go from `dst` to `src`, by the same filter.
        plan: Of these edges, made once and reused by every layer; without it each call makes its own.

    Returns:
        Summed messages; zero if no edge arrives. [num_nodes, channels]; with directions scalars and the three axes
        of vectors. [num_nodes, 4 * channels / 3]

    Raises:
        ValueError: shapes do not fit, or an index is out of range.

    Example:
        >>> network = FilterNetwork(weights=[torch.tensor([[2.0]])], biases=[None])
        >>> x, src, dst = torch.tensor([[1.0], [5.0]]), torch.tensor([1, 1]), torch.tensor([0, 1])
        >>> interaction(x, src, dst, 2, network, torch.tensor([[3.0], [4.0]]), envelope=torch.tensor([1.0, 0.0]))
        tensor([[30.],
                [ 0.]])
    """
    call = Call(
        x,
        expansion,
        envelope,
        list(network.weights),
        list(network.biases),
        src,
        dst,
        num_nodes,
        int(network.activation),
        half_list,
        None if gaussians is None else gaussians.centres,
        0.0 if gaussians is None else gaussians.width,
        direction=direction,
    )
    check_call(call)
    # The derivative by a centre is never used; the definition has it.
    if _needs_gradient(call.centres) or not serves(*call.tensors, call.centres, src, dst):
        return call.sums()
    sizes = x.shape[0], num_nodes
    if plan is not None and not plan.is_of(src, dst, sizes, envelope):
        plan = None
    if plan is None and is_eager(()):
        plan = InteractionPlan.of(src, dst, sizes, envelope, expansion if gaussians is not None else None)
    return interact(call if plan is None else call.planned(plan.tensor))[0]


def serves(*tensors: Tensor | None) -> bool:
    """Whether an interaction of these tensors is one operation: in float32 on a processor, without autocast.

    If it is run at once, the processor must have kernels for it; where it is written down, whoever runs it decides.
    """
    given = [t for t in tensors if t is not None]
    return (
        all(t.dtype is torch.float32 for t in given if t.is_floating_point())
        and all(t.is_cpu and 0 < t.numel() < 2**31 for t in given)
        and not torch.is_autocast_enabled("cpu")
        and (interaction_call.is_served() if is_eager(given) else is_written_down())
    )


def _needs_gradient(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version
