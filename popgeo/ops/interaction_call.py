"""One interaction: what it is given, what it computes, and how the compiled kernels are called for it."""

import ctypes
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.cfconv import cfconv, vector_messages
from popgeo.ops.filter_network import MAX_LAYERS, Activation, FilterNetwork, Gaussians
from popgeo.ops.kernel_arguments import as_int64, pointer
from popgeo.ops.refusals import refuse_index

GROUP = 8  # interaction.h: filters are made for as many edges at once
_INT = ctypes.c_int64
_pack_plan = struct.Struct("9q").pack  # InteractionPlanCall of interaction_plan.cpp
_pack_call = struct.Struct("27qd24q").pack  # InteractionCall of interaction.h


@dataclass(frozen=True)
class Call:
    """What one interaction is given, in the order of the operations' schemas.

    Attributes:
        x: Features of the sources. [num_sources, channels]
        expansion: Distances if there are centres, else the network's inputs. [num_edges] or [num_edges, inputs]
        envelope: Factor of each filter. [num_edges] or [num_edges, 1]
        weights: Of each layer. [out, in]
        biases: Of each layer. [out]
        src: Source of each edge. [num_edges]
        dst: Receiver of each edge. [num_edges]
        num_nodes: Receivers.
        activation: Between the layers; one of `Activation`.
        half_list: Whether each edge represents both directions.
        centres: Of the Gaussians. [inputs]
        width: What the square of the distance from a centre is multiplied with; negative.
        plan: From `make_plan`.
        direction: Of each edge, from its receiver to its source: messages are then of scalars and vectors.
            [num_edges, 3]
    """

    x: Tensor
    expansion: Tensor
    envelope: Tensor | None
    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]
    src: Tensor
    dst: Tensor
    num_nodes: int
    activation: int
    half_list: bool
    centres: Tensor | None = None
    width: float = 0.0
    plan: Tensor | None = None
    direction: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor | None]:
        """What it may be differentiated by: features, expansion, envelope, direction, weights, biases."""
        return [self.x, self.expansion, self.envelope, self.direction, *self.weights, *self.biases]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the operations take them."""
        return tuple(vars(self).values())

    def of(self, tensors: Sequence[Any]) -> "Call":
        """The same call on other `tensors`."""
        x, expansion, envelope, direction, *layers = tensors
        weights, biases = layers[: len(self.weights)], layers[len(self.weights) :]
        data = {"x": x, "expansion": expansion, "envelope": envelope, "direction": direction}
        return replace(self, **data, weights=weights, biases=biases)

    def planned(self, plan: Tensor) -> "Call":
        """The same call with a plan."""
        return replace(self, plan=plan)

    def sums(self) -> Tensor:
        """The definition, in operations that torch differentiates as often as one likes. [num_nodes, channels]"""
        network = FilterNetwork(weights=self.weights, biases=self.biases, activation=Activation(self.activation))  # type: ignore[call-arg]
        rows = self.expansion
        if self.centres is not None:
            rows = Gaussians(centres=self.centres, width=self.width)(rows)
        w = network(rows)  # [num_edges, channels]
        if self.envelope is not None:
            w = w * (self.envelope.unsqueeze(1) if self.envelope.dim() == 1 else self.envelope)

        def convolve(x: Tensor, w: Tensor, odd: bool = False) -> Tensor:
            message = cfconv(x, w, self.src, self.dst, self.num_nodes)
            if not self.half_list:
                return message
            back = cfconv(x, w, self.dst, self.src, self.num_nodes)
            return message - back if odd else message + back

        return convolve(self.x, w) if self.direction is None else vector_messages(convolve, self.x, w, self.direction)

    def gradients(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
        """The wanted ones of the gradients by `tensors` of the definition, from that of the sums.

        Where gradients are on, they can be differentiated again.
        """
        again = torch.is_grad_enabled()
        tensors = list(self.tensors)
        with _autograd_again(), torch.enable_grad():
            for i, (t, is_wanted) in enumerate(zip(tensors, wanted, strict=True)):
                if t is not None:
                    # Under a name of its own: a distance may also reach the sums through the envelope, a second path
                    # gradient.
                    named = t.view_as(t) if again else t.detach()
                    tensors[i] = named if named.requires_grad else named.requires_grad_(is_wanted)
            by = [t for t, is_wanted in zip(tensors, wanted, strict=True) if t is not None and is_wanted]
            return list(torch.autograd.grad(self.of(tensors).sums(), by, grad, create_graph=again))

    def second_gradients(
        self, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> list[Tensor]:
        """The wanted ones of the gradients by `grad` and `tensors` of the definition, from those of the `first` ones.

        Where gradients are on, they can be differentiated again.

        Args:
            grad: Of the sums.
            first: Which of `tensors` the gradients were made for that this differentiates.
            along: The gradient of each of those; None for an unused one.
            wanted: Of `grad` and each of `tensors`.
        """
        again = torch.is_grad_enabled()
        with _autograd_again(), torch.enable_grad():
            leaves = [
                None if t is None else (t.view_as(t) if again and t.requires_grad else t.detach().requires_grad_())
                for t in (grad, *self.tensors)
            ]
            made = self.of(leaves[1:]).gradients(leaves[0], first)  # type: ignore[arg-type]
            used = [(one, t) for one, t in zip(made, along, strict=True) if t is not None and one.requires_grad]
            by = [t for t, is_wanted in zip(leaves, wanted, strict=True) if t is not None and is_wanted]
            outputs, given = zip(*used, strict=True) if used else ((), ())
            return list(torch.autograd.grad(outputs, by, given, create_graph=again, materialize_grads=True))

    def is_served(self) -> bool:
        """Whether the kernels compute it: all of it is float32 in memory of a processor that they are made for."""
        floating = [t for t in (*self.tensors, self.centres) if t is not None]
        served = all(t.dtype is torch.float32 and t.is_cpu and t.numel() > 0 for t in floating)
        return served and self.src.numel() > 0 and is_served()

    def laid_out(self) -> "Call":
        """The same call as the kernels read it: with a plan, and every tensor contiguous."""
        plan = self.plan
        if plan is None:
            plan = self.src.new_empty(plan_size(self.src.shape[0], self.x.shape[0], self.num_nodes), dtype=torch.int32)
            distances = None if self.centres is None else self.expansion.contiguous()
            fill_plan(self.src, self.dst, None, distances, (self.x.shape[0], self.num_nodes), plan)
        centres = None if self.centres is None else library.as_read(self.centres)
        tensors = [None if t is None else library.as_read(t) for t in self.tensors]
        return replace(self.of(tensors), centres=centres, plan=library.as_read(plan))

    def pack(
        self,
        *,
        out: Tensor | None = None,
        filters: Tensor | None = None,
        grad: Tensor | None = None,
        grads: Sequence[Tensor | None] = (),
        workspace: Tensor | None = None,
        along: Sequence[Tensor | None] | None = None,
        to_grad: Tensor | None = None,
        num_threads: int = 1,
        keeps_slopes: bool = False,
    ) -> bytes:
        """The structure for the kernels.

        Args:
            out: Where the sums go, or the gradient of `x`; None if it is not asked for.
            filters: What the forward pass leaves for the backward one; with slopes next to them, rows twice as long.
                `filters_shape`
            grad: Of the sums, for the backward pass. [num_rows, channels]
            grads: Where the gradients of the expansion, the envelope, the direction, and each layer's weight and bias
                go.
            workspace: As `workspace` makes it.
            along: In the second backward pass, the gradients of those of `x`, expansion, envelope and direction.
            to_grad: Where the gradient of `grad` goes.
            num_threads: How many threads may work on it; the bits are the same for any number.
            keeps_slopes: The same for filters, if they have no slopes yet.
        """
        keeps_slopes |= filters is not None and filters.shape[1] > self.filters_shape[1]
        missing: list[Tensor | None] = [None] * (3 + 2 * len(self.weights) - len(grads))
        to_edges, to_layers = [*grads, *missing][:3], [*grads, *missing][3:]
        data = self.plan, self.x, grad, out, filters, self.expansion, self.centres, self.envelope, self.direction
        layers: list[int] = []
        for weight, bias, to_weight, to_bias in zip(
            self.weights, self.biases, to_layers[::2], to_layers[1::2], strict=True
        ):
            layers += map(pointer, (weight, bias, to_weight, to_bias))
            layers += [weight.shape[1], weight.shape[0]]
        layers += [0] * (6 * MAX_LAYERS - len(layers))
        ways = (None,) * 4 if along is None else along
        pointers = map(pointer, (*data, *to_edges, workspace, *ways, to_grad))
        sizes = self.src.shape[0], self.x.shape[0], self.num_nodes
        choices = int(self.half_list), int(self.activation), len(self.weights), num_threads
        return _pack_call(*pointers, *sizes, *choices, along is not None, keeps_slopes, self.width, *layers)

    def workspace(self, num_threads: int, *, is_second: bool = False, keeps_slopes: bool = False) -> Tensor:
        """Memory that a call needs to work in, forward or backward, or in the second backward pass."""
        native = library.packed("popgeo_interaction_workspace")
        assert native is not None
        along = (None,) * 4 if is_second else None
        return torch.empty(native(self.pack(num_threads=num_threads, along=along, keeps_slopes=keeps_slopes)))

    @property
    def filters_shape(self) -> tuple[int, int]:
        """Of the filters that the forward pass keeps; if it keeps slopes, too, rows are twice as long."""
        channels = self.x.shape[1]
        if self.direction is not None:  # three sections, each on lines of its own
            channels = 3 * 16 * -(-channels // 80)
        return filters_shape(self.src.shape[0], channels)

    def empty_filters(self) -> Tensor:
        """Memory for the filters alone."""
        return self.x.new_empty(self.filters_shape)


def _autograd_again() -> AbstractContextManager[Any]:
    """Lets torch differentiate within an operation's kernel, which is called below autograd."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView", "AutogradFunctionality"):
        excluded = excluded.remove(torch._C._dispatch_key_parse(key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def is_served() -> bool:
    """Whether the compiled library is in use and this processor has fused multiply-adds."""
    native = library.function("popgeo_interaction_is_served", (), _INT)
    return native is not None and bool(native())


def filters_shape(num_edges: int, channels: int) -> tuple[int, int]:
    """Of the filters, as the kernels write them: whole groups of edges, rows an odd number of lines of memory apart."""
    return -(-num_edges // GROUP) * GROUP, 16 * (-(-channels // 16) | 1)


def plan_size(num_edges: int, num_sources: int, num_rows: int) -> int:
    """Numbers of a plan, as interaction.h lays them out."""
    return 4 + 7 * num_edges + num_rows + 1 + num_sources + 1


def make_plan(
    src: Tensor, dst: Tensor, sizes: tuple[int, ...], envelope: Tensor | None, distances: Tensor | None, plan: Tensor
) -> bool:
    """Fills the plan of the edges; False where an index is out of range.

    Args:
        src: Source of each edge. int64 [num_edges]
        dst: Receiver of each edge. int64 [num_edges]
        sizes: Sources and receivers; and whether two edges in opposite directions over the same distance share a
            filter, where every edge has such a twin: for calls that ask for no gradient of an edge. Otherwise each
            edge has its own.
        envelope: Edges at which it is exactly 0 are left out. float32 [num_edges]
        distances: Edges are put into blocks of like ones. float32 [num_edges]
        plan: If it goes. int32 [plan_size]
    """
    native = library.packed("popgeo_interaction_plan")
    assert native is not None
    pointers = map(pointer, (src, dst, envelope, distances, plan))
    return native(_pack_plan(*pointers, src.shape[0], *(*sizes, 0)[:3])) == 0


def fill_plan(
    src: Tensor, dst: Tensor, envelope: Tensor | None, distances: Tensor | None, sizes: tuple[int, ...], plan: Tensor
) -> None:
    """`make_plan`, which refuses an index that is out of range.

    Raises:
        ValueError: an index is out of range.
    """
    if not make_plan(as_int64(src), as_int64(dst), sizes, envelope, distances, plan):
        refuse_index("src", src, sizes[0])
        refuse_index("dst", dst, sizes[1])


def run(direction: str, packed: bytes) -> None:
    """Runs a packed call, `"forward"`, `"backward"` or `"second"`.

    Raises:
        ValueError: the plan is of other edges, or was changed.
    """
    native = library.packed(f"popgeo_interaction_{direction}")
    assert native is not None
    if native(packed):
        raise ValueError("The plan of the interaction is of other edges or was changed. Make a new one.")
