"""What an interaction makes its filters with: Gaussians of distances, and linear layers with an activation.

`Activation` is the one table in Python of the activations that may stand between the layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.ops.exp_or_zero import exp_or_zero
from popgeo.ops.shifted_softplus import shifted_softplus

MAX_LAYERS = 4  # interaction.h


class Activation(IntEnum):
    """What stands between the layers of a filter network; the numbers are those of interaction.h.

    Attributes:
        function: Computes it.
        module: The module of torch that computes it, with its default settings; None if torch has no such module.
        target: The operation that a captured graph holds for it.

    Example:
        >>> Activation.RELU(torch.tensor([-1.0, 1.0])), Activation.SILU.module.__name__
        (tensor([0., 1.]), 'SiLU')
    """

    function: Callable[[Tensor], Tensor]
    module: type[nn.Module] | None
    target: str

    def __new__(
        cls, number: int, function: Callable[[Tensor], Tensor], module: type[nn.Module] | None, target: str
    ) -> "Activation":
        made = int.__new__(cls, number)
        made._value_ = number
        made.function, made.module, made.target = function, module, f"{target}.default"
        return made

    SHIFTED_SOFTPLUS = 0, shifted_softplus, None, "popgeo.shifted_softplus"
    SOFTPLUS = 1, F.softplus, nn.Softplus, "aten.softplus"
    SILU = 2, F.silu, nn.SiLU, "aten.silu"
    RELU = 3, torch.relu, nn.ReLU, "aten.relu"
    TANH = 4, torch.tanh, nn.Tanh, "aten.tanh"
    SIGMOID = 5, torch.sigmoid, nn.Sigmoid, "aten.sigmoid"

    def __call__(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape"""
        return self.function(x)


@dataclass(frozen=True, kw_only=True)
class FilterNetwork:
    """Linear layers with an activation between them: what makes a filter from the expansion of a distance.

    Args:
        weights: Of one to four layers. Each [out, in]
        biases: Of the same layers, None for one without. Each [out]
        activation: Between two layers; none follows the last.

    Raises:
        ValueError: too many or too few layers, or shapes that do not follow each other.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]
    activation: Activation = Activation.SHIFTED_SOFTPLUS

    def __post_init__(self) -> None:
        if not 1 <= len(self.weights) <= MAX_LAYERS or len(self.weights) != len(self.biases):
            raise ValueError(
                f"A filter network has {len(self.weights)} weights and {len(self.biases)} biases; pass one to "
                f"{MAX_LAYERS} layers, with None for a bias that is not there."
            )
        width = self.weights[0].shape[-1]
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if weight.dim() != 2 or weight.shape[1] != width or (bias is not None and bias.shape != weight.shape[:1]):
                raise ValueError(
                    f"Layer {i} has a weight of shape {tuple(weight.shape)} and a bias of "
                    f"{None if bias is None else tuple(bias.shape)}; they are [out, {width}] and [out]."
                )
            width = weight.shape[0]

    def __call__(self, rows: Tensor) -> Tensor:
        """[num_edges, in] -> [num_edges, out]"""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = F.linear(self.activation(rows) if i else rows, weight, bias)
        return rows


@dataclass(frozen=True, kw_only=True)
class Gaussians:
    """exp(width * (r - centre)^2) for each centre, exactly 0 below e^-60.

    Args:
        centres: In the unit of the distances. [num_gaussians]
        width: Negative, in one over the square of that unit.

    Raises:
        ValueError: the width is not negative.
    """

    centres: Tensor
    width: float

    def __post_init__(self) -> None:
        if not self.width < 0:
            raise ValueError(f"The width of the Gaussians is {self.width}; it must be negative: they fall.")

    def __call__(self, r: Tensor) -> Tensor:
        """[num_edges] -> [num_edges, num_gaussians]"""
        return exp_or_zero(self.width * (r.reshape(-1, 1) - self.centres).square())
