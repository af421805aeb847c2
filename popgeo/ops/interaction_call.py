"""Calls of the compiled interaction: what it is given as one structure, and the memory that it works in."""

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.kernel_arguments import pointer

MAX_LAYERS = 4
LEAST_EXPONENT = -60.0  # of a Gaussian; as `exp_or_zero`
GROUP = 8  # interaction.h: filters are made for as many edges at once
_INT = ctypes.c_int64
_pack_plan = struct.Struct("8q").pack  # InteractionPlanCall of interaction_plan.cpp
_pack_call = struct.Struct("18qd24q").pack  # InteractionCall of interaction.h


class Activation(IntEnum):
    """What stands between the layers of a filter network; the numbers are those of interaction.h."""

    SHIFTED_SOFTPLUS = 0
    SOFTPLUS = 1
    SILU = 2
    RELU = 3
    TANH = 4
    SIGMOID = 5


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one interaction is given; everything is float32, contiguous and in memory of the processor.

    Attributes:
        num_edges: Slots, absent ones included.
        num_rows: Receivers.
        plan: From `make_plan`.
        x: Features of the sources. [num_sources, channels]
        expansion: Distances where there are centres, else the network's inputs. [num_edges] or [num_edges, inputs]
        centres: Of the Gaussians. [inputs]
        width: What the square of the distance from a centre is multiplied with; negative.
        envelope: Factor of each filter. [num_edges]
        weights: Of each layer. [out, in]
        biases: Of each layer. [out]
    """

    num_edges: int
    num_rows: int
    plan: Tensor
    x: Tensor
    expansion: Tensor
    centres: Tensor | None
    width: float
    envelope: Tensor | None
    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]
    activation: int
    half_list: bool

    def pack(
        self,
        *,
        out: Tensor | None = None,
        filters: Tensor | None = None,
        grad: Tensor | None = None,
        grads: Sequence[Tensor | None] = (),
        workspace: Tensor | None = None,
        num_threads: int = 1,
    ) -> bytes:
        """The structure for the kernels.

        Args:
            out: Where the sums go, or the gradient of `x`; None where nobody asks for that.
            filters: What the forward pass leaves for the backward one. `filters_shape`
            grad: Of the sums, for the backward pass. [num_rows, channels]
            grads: Where the gradients of the expansion, the envelope, and each layer's weight and bias go.
            workspace: At least `workspace_size` numbers.
            num_threads: How many threads may work on it; the bits are the same for any number.
        """
        missing: list[Tensor | None] = [None] * (2 + 2 * len(self.weights) - len(grads))
        to_expansion, to_envelope, *to_layers = [*grads, *missing]
        data = self.plan, self.x, grad, out, filters, self.expansion, self.centres, self.envelope
        layers: list[int] = []
        for weight, bias, to_weight, to_bias in zip(
            self.weights, self.biases, to_layers[::2], to_layers[1::2], strict=True
        ):
            layers += map(pointer, (weight, bias, to_weight, to_bias))
            layers += [weight.shape[1], weight.shape[0]]
        layers += [0] * (6 * MAX_LAYERS - len(layers))
        pointers = map(pointer, (*data, to_expansion, to_envelope, workspace))
        sizes = self.num_edges, self.x.shape[0], self.num_rows
        choices = int(self.half_list), int(self.activation), len(self.weights), num_threads
        return _pack_call(*pointers, *sizes, *choices, self.width, *layers)

    def workspace_size(self, num_threads: int) -> int:
        """Numbers that a call needs to work in, forward or backward."""
        native = library.packed("popgeo_interaction_workspace")
        assert native is not None
        return native(self.pack(num_threads=num_threads))


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
    src: Tensor, dst: Tensor, sizes: tuple[int, int], envelope: Tensor | None, distances: Tensor | None, plan: Tensor
) -> bool:
    """Fills the plan of the edges; False where an index is out of range.

    Args:
        src: Source of each edge. int64 [num_edges]
        dst: Receiver of each edge. int64 [num_edges]
        sizes: Sources and receivers.
        envelope: Edges at which it is exactly 0 are left out. float32 [num_edges]
        distances: Edges are put into blocks of like ones. float32 [num_edges]
        plan: Where it goes. int32 [plan_size]
    """
    native = library.packed("popgeo_interaction_plan")
    assert native is not None
    pointers = map(pointer, (src, dst, envelope, distances, plan))
    return native(_pack_plan(*pointers, src.shape[0], *sizes)) == 0


def run(direction: str, packed: bytes) -> None:
    """Runs a packed call, `"forward"` or `"backward"`.

    Raises:
        ValueError: the plan is of other edges, or was changed.
    """
    native = library.packed(f"popgeo_interaction_{direction}")
    assert native is not None
    if native(packed):
        raise ValueError("The plan of the interaction is of other edges or was changed. Make a new one.")


def empty_filters(num_edges: int, channels: int) -> Tensor:
    """Memory for filters."""
    return torch.empty(filters_shape(num_edges, channels))
