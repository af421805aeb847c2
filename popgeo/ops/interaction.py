"""From distances to messages in one pass over the edges: SchNet's interaction, forward and backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popgeo.ops import interaction_call
from popgeo.ops.cfconv import cfconv
from popgeo.ops.eager import is_eager
from popgeo.ops.filter_network import Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction_call import Call
from popgeo.ops.kernel_arguments import as_int64
from popgeo.ops.refusals import check_index, refuse_index


@dataclass(frozen=True, kw_only=True, eq=False)
class InteractionPlan:
    """The order in which an interaction goes through its edges, made once for all layers on the same edges.

    It belongs to the tensors that it was made from and is refused, and made anew, where they differ or were changed.

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
    ) -> "InteractionPlan":
        """The plan of these edges, without those at which the envelope is exactly 0 and has no gradient.

        Args:
            src: Source of each edge. [num_edges]
            dst: Destination of each edge. [num_edges]
            sizes: Sources and receivers.
            envelope: Factor of each edge. [num_edges]
            distances: Put edges of like distance beside each other, where many Gaussians are 0. [num_edges]

        Raises:
            ValueError: an index is out of range.
        """
        tensor = torch.empty(interaction_call.plan_size(src.shape[0], *sizes), dtype=torch.int32)
        skips = None if envelope is None or _needs_gradient(envelope) else envelope.detach().contiguous()
        by_distance = None if distances is None else distances.detach().contiguous()
        if not interaction_call.make_plan(as_int64(src), as_int64(dst), sizes, skips, by_distance, tensor):
            refuse_index("src", src, sizes[0])
            refuse_index("dst", dst, sizes[1])
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
    half_list: bool = False,
    plan: InteractionPlan | None = None,
) -> Tensor:
    """Make a filter for each edge, multiply the features of its source by it and sum them at its destination.

    out[dst[e]] += x[src[e]] * network(expansion[e]) * envelope[e], eq. 2 of SchNet (arXiv:1706.08566). On processors
    with fused multiply-adds, in float32, edges go through all of it block by block, in cache, and of the backward pass
    only the filters are kept. Edges at which the envelope is exactly 0 cost nothing and
    carry nothing, not even a NaN. The result has the same bits for
    any number of threads. Elsewhere, under capture and for second derivatives it is what plain torch computes.

    Args:
        x: Features of the sources. [num_sources, channels]
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        num_nodes: Rows of the result; never read from `dst`, so the shape is static.
        network: Makes the filters.
        expansion: Inputs of the network, or distances where Gaussians expand them. [num_edges, in] or [num_edges]
        gaussians: What expands distances.
        envelope: Factor of each filter. [num_edges]
        half_list: Each edge stands for both directions: messages also go from `dst` to `src`, by the same filter.
        plan: Of these edges, made once and reused by every layer; without it each call makes its own.

    Returns:
        Summed messages; zero where no edge arrives. [num_nodes, channels]

    Raises:
        ValueError: shapes do not fit, or an index is out of range.

    Example:
        >>> network = FilterNetwork(weights=[torch.tensor([[2.0]])], biases=[None])
        >>> x, src, dst = torch.tensor([[1.0], [5.0]]), torch.tensor([1, 1]), torch.tensor([0, 1])
        >>> interaction(x, src, dst, 2, network, torch.tensor([[3.0], [4.0]]), envelope=torch.tensor([1.0, 0.0]))
        tensor([[30.],
                [ 0.]])
    """
    _check(x, src, dst, num_nodes, network, expansion, gaussians, envelope, half_list)
    centres = None if gaussians is None else gaussians.centres
    optional = [t for t in (envelope, centres, *network.biases) if t is not None]
    tensors = [x, expansion, *network.weights, *optional]
    # The derivative by a centre is asked for by nobody; plain torch has it.
    if (centres is not None and _needs_gradient(centres)) or not serves(src, dst, *tensors):
        return _plain(x, expansion, envelope, network, gaussians, (src, dst, num_nodes, half_list))
    sizes = x.shape[0], num_nodes
    if plan is None or not plan.is_of(src, dst, sizes, envelope):
        plan = InteractionPlan.of(src, dst, sizes, envelope, expansion if gaussians is not None else None)
    static = plan.tensor, network.activation, gaussians, (src, dst, num_nodes, half_list)
    arguments = expansion, envelope, *network.weights, *network.biases
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Interaction.apply(static, x, *arguments)
    return _forward(static, x, *arguments)[0]


def serves(*tensors: Tensor) -> bool:
    """Whether an interaction of these tensors runs in one pass: float32 in memory, eager, on a processor for it."""
    floating = [t for t in tensors if t.is_floating_point()]
    return (
        all(t.dtype is torch.float32 for t in floating)
        and all(t.is_cpu and 0 < t.numel() < 2**31 for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and is_eager(tensors)
        and interaction_call.is_served()
    )


def _plain(
    x: Tensor,
    expansion: Tensor,
    envelope: Tensor | None,
    network: FilterNetwork,
    gaussians: Gaussians | None,
    edges: tuple[Tensor, Tensor, int, bool],
) -> Tensor:
    """The definition, in ops that torch differentiates as often as one likes."""
    src, dst, num_nodes, half_list = edges
    w = network(expansion if gaussians is None else gaussians(expansion))  # [num_edges, channels]
    w = w if envelope is None else w * envelope.unsqueeze(1)
    message = cfconv(x, w, src, dst, num_nodes)
    return message + cfconv(x, w, dst, src, num_nodes) if half_list else message


_Static = tuple[Tensor, Activation, Gaussians | None, tuple[Tensor, Tensor, int, bool]]


def _call(static: _Static, x: Tensor, expansion: Tensor, envelope: Tensor | None, *layers: Tensor | None) -> Call:
    plan, activation, gaussians, (src, _, num_nodes, half_list) = static
    given = [None if t is None else t.detach().contiguous() for t in (x, expansion, envelope, *layers)]
    x, expansion, envelope, *layers = given  # type: ignore[assignment]
    half = len(layers) // 2
    return Call(
        num_edges=src.shape[0],
        num_rows=num_nodes,
        plan=plan,
        x=x,
        expansion=expansion,
        centres=None if gaussians is None else gaussians.centres.detach().contiguous(),
        width=0.0 if gaussians is None else gaussians.width,
        envelope=envelope,
        weights=layers[:half],  # type: ignore[arg-type]
        biases=layers[half:],
        activation=activation,
        half_list=half_list,
    )


def _forward(static: _Static, x: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums, and the filters as the backward pass reads them."""
    call = _call(static, x, *rest)  # type: ignore[arg-type]
    num_threads = torch.get_num_threads()
    out = x.new_empty(call.num_rows, x.shape[1])
    filters = interaction_call.empty_filters(call.num_edges, x.shape[1])
    workspace = torch.empty(call.workspace_size(num_threads))
    packed = call.pack(out=out, filters=filters, workspace=workspace, num_threads=num_threads)
    interaction_call.run("forward", packed)
    return out, filters


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, static: _Static, *tensors: Tensor | None) -> Tensor:
        out, filters = _forward(static, *tensors)  # type: ignore[arg-type]
        ctx.static = static
        ctx.save_for_backward(*tensors, filters)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, filters = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # these gradients are to be differentiated again
            return None, *_plain_gradients(ctx.static, tensors, needed, grad)
        call, grad = _call(ctx.static, *tensors), grad.contiguous()
        num_threads = torch.get_num_threads()
        to_x, *to_rest = [
            torch.empty(t.shape) if t is not None and wanted else None
            for t, wanted in zip(tensors, needed, strict=True)
        ]
        half = len(call.weights)
        to_layers = [t for pair in zip(to_rest[2 : 2 + half], to_rest[2 + half :], strict=True) for t in pair]
        workspace = torch.empty(call.workspace_size(num_threads))
        packed = call.pack(
            out=to_x,
            filters=filters,
            grad=grad,
            grads=[*to_rest[:2], *to_layers],
            workspace=workspace,
            num_threads=num_threads,
        )
        interaction_call.run("backward", packed)
        return None, to_x, *to_rest


def _plain_gradients(
    static: _Static, tensors: Sequence[Tensor | None], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients as functions of the tensors that torch can differentiate, from the definition."""
    _, activation, gaussians, edges = static
    # Under names of their own: a distance may also reach the result through the envelope, which is another gradient.
    tensors = [None if t is None else t.view_as(t) for t in tensors]
    x, expansion, envelope, *layers = tensors
    half = len(layers) // 2
    network = FilterNetwork(weights=layers[:half], biases=layers[half:], activation=activation)  # type: ignore[arg-type]
    assert x is not None
    assert expansion is not None
    out = _plain(x, expansion, envelope, network, gaussians, edges)
    wanted = [t for t, is_needed in zip(tensors, needed, strict=True) if t is not None and is_needed]
    grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(grads) if t is not None and is_needed else None for t, is_needed in zip(tensors, needed, strict=True)]


def _needs_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _check(
    x: Tensor,
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    network: FilterNetwork,
    expansion: Tensor,
    gaussians: Gaussians | None,
    envelope: Tensor | None,
    half_list: bool,
) -> None:
    """Refuses shapes that do not fit; looks at no value."""
    num_edges = src.shape[0]
    check_index("src", src, num_edges, x)
    check_index("dst", dst, num_edges, x)
    channels, inputs = network.weights[-1].shape[0], network.weights[0].shape[1]
    if x.dim() != 2 or x.shape[1] != channels:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; the network makes filters of {channels} channels: [n, {channels}]."
        )
    wanted = (num_edges,) if gaussians is not None else (num_edges, inputs)
    if expansion.shape != wanted:
        raise ValueError(
            f"expansion has shape {tuple(expansion.shape)}; for these edges and this network pass {wanted}."
        )
    if gaussians is not None and gaussians.centres.shape != (inputs,):
        raise ValueError(f"There are {gaussians.centres.numel()} centres; the network takes {inputs} inputs.")
    if envelope is not None and envelope.shape != (num_edges,):
        raise ValueError(f"envelope has shape {tuple(envelope.shape)}; pass one factor for each edge: ({num_edges},).")
    if half_list and x.shape[0] != num_nodes:
        raise ValueError(
            f"x has {x.shape[0]} rows and num_nodes is {num_nodes}; in a half list every node sends and receives, so "
            "they must be equal."
        )
