"""In which types gradients are joined, updates worked out and state is kept, and how weights round."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.step_options import StepOptions

NARROW = (torch.float16, torch.bfloat16)


def is_mixed(options: StepOptions) -> bool:
    """Whether updates of narrow weights are worked out in float32."""
    if options.accumulation_dtype is torch.float32:  # few optimizers take such a gradient as it is
        return True
    return options.optimizer_state_dtype is not None or options.master_weights or options.stochastic_rounding


def gradient_type(options: StepOptions, optimizer: Optimizer, weights: torch.dtype) -> torch.dtype:
    """The type in which gradients of these weights are joined and scaled.

    Raises:
        ValueError: another narrow type than that of the weights, or torch cannot hold a wider gradient.

    Example:
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        >>> gradient_type(StepOptions(), sgd, torch.float16)
        torch.float16
        >>> gradient_type(StepOptions(optimizer_state_dtype=torch.float32), sgd, torch.float16)
        torch.float32
    """
    if weights not in NARROW:
        return weights
    chosen = options.accumulation_dtype or (torch.float32 if is_mixed(options) else None)
    if chosen is None:
        wanted = getattr(optimizer, "accum_type", weights)
        return torch.float32 if wanted is torch.float32 else weights
    if chosen not in (torch.float32, weights):
        raise ValueError(
            f"accumulation_dtype is {chosen}, and some weights are {weights}; gradients are joined in the weights' own "
            "type or in torch.float32."
        )
    return chosen


def rounding_counter(seed: int, number: int, num_updates: int, part: int = 0) -> int:
    """Where the rounding of the weights of this number starts after that many updates.

    Args:
        seed: Where the random numbers of the first update started.
        number: Of the joined weights.
        num_updates: How many updates there have been.
        part: Which part of these weights a process updates; each has random numbers of its own.

    Example:
        >>> first, second = (rounding_counter(0, 0, 5, part) for part in (0, 1))
        >>> first == second, rounding_counter(0, 0, 6) - first
        (False, 1)
    """
    words = np.random.SeedSequence(seed % 2**64, spawn_key=(part, number)).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(2)) + num_updates


def restore_types(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Gives an optimizer's state the types of the `state_dict` that it has loaded.

    Args:
        optimizer: Has loaded it.
        saved: What it has loaded.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
        >>> sgd = torch.optim.SGD([weight], momentum=0.9)
        >>> saved = sgd.state_dict() | {"state": {0: {"momentum_buffer": torch.tensor([0.1])}}}
        >>> sgd.load_state_dict(saved)
        >>> restore_types(sgd, saved)
        >>> sgd.state[weight]["momentum_buffer"]
        tensor([0.1000])
    """
    names = [name for group in saved["param_groups"] for name in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        for key, part in saved["state"].get(name, {}).items():
            loaded = optimizer.state[parameter].get(key)
            if isinstance(part, Tensor) and isinstance(loaded, Tensor) and loaded.dtype in NARROW:
                optimizer.state[parameter][key] = part.detach().clone().to(loaded.device)


def keep_types_when_loading(optimizer: Optimizer) -> None:
    """Lets `optimizer.load_state_dict` leave state in the types in which it was saved."""
    if getattr(optimizer, "_keeps_types_when_loading", False):
        return
    saved: list[dict[str, Any]] = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: saved.append(state))
    optimizer.register_load_state_dict_post_hook(lambda loaded: restore_types(loaded, saved.pop()))
    optimizer._keeps_types_when_loading = True  # type: ignore[attr-defined]
