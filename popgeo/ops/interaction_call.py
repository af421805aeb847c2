"""Calls of the compiled interaction: what it is given as one structure, and the memory that it works in."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.kernel_arguments import pointer

MAX_LAYERS = 4
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
    """What one interaction computes, apart from the gradients that are asked for.

    Attributes:
        plan: Of the edges, from `make_plan`.
        x: Features of the sources, contiguous. [num_sources, channels]
        expansion: Distances where there are centres, else the network's inputs. [num_edges] or [num_edges, inputs]
        centres: Of the Gaussians. [inputs]
        width: What the square of the distance from a centre is multiplied with; negative.
        envelope: Factor of each filter. [num_edges]
        weights: Of each layer. [out, in]
        biases: Of each layer. [out]
        sizes: Edges and receivers.
    """

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
    sizes: tuple[int, int]

    def pack(
        self,
        *,
        grad: Tensor | None = None,
        out: Tensor | None = None,
        filters: Tensor | None = None,
        grads: Sequence[Tensor | None] = (),
        workspace: Tensor | None = None,
        num_threads: int = 1,
    ) -> bytes:
        """The structure; `grads` are those of expansion, envelope, and each layer's weight and bias."""
        given = [self.plan, self.x, grad, out, filters, self.expansion, self.centres, self.envelope]
        to_expansion, to_envelope, *to_layers = [*grads, *[None] * (2 + 2 * len(self.weights) - len(grads))]
        num_edges, num_rows = self.sizes
        choices = int(self.half_list), int(self.activation), len(self.weights), num_threads
        layers: list[int] = []
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            pointers = map(pointer, (weight, bias, to_layers[2 * i], to_layers[2 * i + 1]))
            layers += [*pointers, weight.shape[1], weight.shape[0]]
        layers += [0] * (6 * MAX_LAYERS - len(layers))
        pointers = map(pointer, (*given, to_expansion, to_envelope, workspace))
        return _pack_call(*pointers, num_edges, self.x.shape[0], num_rows, *choices, self.width, *layers)


def is_served() -> bool:
    """Whether the compiled library is in use and this processor has fused multiply-adds."""
    native = library.function("popgeo_interaction_is_served", (), int_type())
    return native is not None and bool(native())
