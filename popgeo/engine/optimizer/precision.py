"""In which types an optimizer joins gradients, works out its update, and keeps its state."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

NARROW = (torch.float16, torch.bfloat16)
_TYPES = (torch.float32, *NARROW)


class PrecisionOptions(Protocol):
    """The choices of a compiled model that this depends on; `popgeo.ipu.Options` explains each of them."""

    @property
    def accumulation_dtype(self) -> torch.dtype | None:
        """The type in which the gradients of float16 weights are joined."""

    @property
    def optimizer_state_dtype(self) -> torch.dtype | None:
        """The type of the optimizer's state; the update is then worked out in float32."""

    @property
    def master_weights(self) -> bool:
        """Whether the optimizer keeps the weights in float32 too."""

    @property
    def stochastic_rounding(self) -> bool:
        """Whether weights are rounded at random."""

    @property
    def random_seed(self) -> int | None:
        """Where random numbers start; None takes torch's own seed."""


def check_precision(options: PrecisionOptions) -> None:
    """Refuses types that there are not, and choices that exclude each other.

    Raises:
        ValueError: there is one.
    """
    owner = type(options).__name__
    for name in ("accumulation_dtype", "optimizer_state_dtype"):
        dtype = getattr(options, name)
        if dtype is not None and dtype not in _TYPES:
            allowed = ", ".join(map(str, _TYPES))
            raise ValueError(f"{owner}.{name} is {dtype!r}; it must be {allowed} or None.")
    for name in ("master_weights", "stochastic_rounding"):
        if not isinstance(getattr(options, name), bool):
            raise ValueError(f"{owner}.{name} is {getattr(options, name)!r}; it must be True or False.")
    if options.master_weights and options.stochastic_rounding:
        raise ValueError(
            f"{owner} asks for master_weights and for stochastic_rounding. Master weights lose nothing that rounding "
            "at random could keep; choose one."
        )


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The types of an update.

    Attributes:
        accumulation: In which gradients of narrow weights are joined; None leaves it to the optimizer.
        state: In which the optimizer's state is kept; None as the optimizer makes it.
        master_weights: Whether the state holds the weights in float32.
        stochastic_rounding: Whether float32 is rounded at random to weights and to narrower state.
        seed: Where the random numbers of the rounding start.
        part: Which part of the weights this process updates, where each updates a part of its own.
    """

    accumulation: torch.dtype | None = None
    state: torch.dtype | None = None
    master_weights: bool = False
    stochastic_rounding: bool = False
    seed: int = 0
    part: int = 0

    @classmethod
    def of(cls, options: PrecisionOptions) -> "Precision":
        """What the options of a compiled model say."""
        return cls(
            accumulation=options.accumulation_dtype,
            state=options.optimizer_state_dtype,
            master_weights=options.master_weights,
            stochastic_rounding=options.stochastic_rounding,
            seed=torch.initial_seed() if options.random_seed is None else options.random_seed,
        )

    @property
    def is_mixed(self) -> bool:
        """Whether updates of narrow weights are worked out in float32."""
        return self.state is not None or self.master_weights or self.stochastic_rounding

    def gradient_type(self, optimizer: Optimizer, weights: torch.dtype) -> torch.dtype:
        """The type in which gradients of such weights are joined and scaled.

        Raises:
            ValueError: another narrow type than that of the weights, or torch cannot hold a wider gradient.

        Example:
            >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
            >>> Precision().gradient_type(sgd, torch.float16), Precision(state=torch.float32).gradient_type(
            ...     sgd, torch.float16)
            (torch.float16, torch.float32)
        """
        if weights not in NARROW:
            return weights
        chosen = self.accumulation or (torch.float32 if self.is_mixed else None)
        if chosen is None:
            wanted = getattr(optimizer, "accum_type", weights)
            return torch.float32 if wanted is torch.float32 and hasattr(Tensor, "grad_dtype") else weights
        if chosen not in (torch.float32, weights):
            raise ValueError(
                f"accumulation_dtype is {chosen}, and some weights are {weights}; gradients are joined in the weights' "
                "own type or in torch.float32."
            )
        if chosen is torch.float32 and not hasattr(Tensor, "grad_dtype"):
            raise ValueError(
                f"Gradients of {weights} weights in float32 need torch 2.9 or later; this is {torch.__version__}. Pass "
                f"accumulation_dtype={weights}."
            )
        return chosen

    def counter(self, number: int, num_updates: int, *, is_divided: bool = False) -> int:
        """Where the rounding of the weights of this number starts after so many updates; each part of them has its own.

        Example:
            >>> starts = [Precision(part=part).counter(0, 5, is_divided=True) for part in (0, 1)]
            >>> starts[0] == Precision().counter(0, 5), starts[0] == starts[1]
            (True, False)
        """
        key = (self.part if is_divided else 0, number)
        words = np.random.SeedSequence(self.seed % 2**64, spawn_key=key).generate_state(1, np.uint64)
        return int(words[0] >> np.uint64(2)) + num_updates
