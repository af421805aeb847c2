"""The activations that a filter network may have between its layers: the one table of them in Python."""

from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.ops.shifted_softplus import shifted_softplus


class Activation(IntEnum):
    """What stands between the layers of a filter network; the numbers are those of interaction.h.

    Attributes:
        function: Computes it.
        module: The module of torch that computes it, with its default settings; None where torch has none.
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
