"""In which types an optimizer joins gradients, works out its update, and keeps its state."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.step_options import StepOptions

NARROW = (torch.float16, torch.bfloat16)


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
    def of(cls, options: StepOptions) -> "Precision":
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
