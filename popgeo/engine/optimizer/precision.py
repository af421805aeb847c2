"""Types of accumulated gradients, updates and optimizer state, and the counter of random rounding."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.step_options import StepOptions

NARROW = (torch.float16, torch.bfloat16)


def is_mixed(options: StepOptions) -> bool:
    """Check whether the options ask for updates of narrow weights in float32."""
    if options.accumulation_dtype is torch.float32:  # few optimizers accept a gradient wider than the weights
        return True
    return options.optimizer_state_dtype is not None or options.master_weights or options.stochastic_rounding


def gradient_type(options: StepOptions, optimizer: Optimizer, weights: torch.dtype) -> torch.dtype:
    """Return the type of accumulated gradients.

    Args:
        options: Options of the run.
        optimizer: Optimizer. An attribute `accum_type` may ask for float32.
        weights: Type of the weights.

    Raises:
        ValueError: `accumulation_dtype` is neither float32 nor the type of the weights.

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
            f"accumulation_dtype is {chosen}, and some weights are {weights}; choose torch.float32 or the type of "
            "the weights."
        )
    return chosen


def rounding_counter(seed: int, number: int, num_updates: int, part: int = 0) -> int:
    """Return the first counter of the random numbers that round a flat parameter in its next update.

    Args:
        seed: Seed of the run.
        number: Number of the flat parameter.
        num_updates: Number of updates so far.
        part: Part of the flat parameter that a process updates. Each part has different random numbers.

    Example:
        >>> first, second = (rounding_counter(0, 0, 5, part) for part in (0, 1))
        >>> first == second, rounding_counter(0, 0, 6) - first
        (False, 1)
    """
    words = np.random.SeedSequence(seed % 2**64, spawn_key=(part, number)).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(2)) + num_updates


def restore_types(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Set an optimizer's state to the exact tensors of the `state_dict` that it has loaded.

    Args:
        optimizer: Optimizer whose `load_state_dict` has rounded the state to the types of its weights.
        saved: The `state_dict`.

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
    """Make `optimizer.load_state_dict` keep the types of the saved state."""
    if getattr(optimizer, "_keeps_types_when_loading", False):
        return
    saved: list[dict[str, Any]] = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: saved.append(state))
    optimizer.register_load_state_dict_post_hook(lambda loaded: restore_types(loaded, saved.pop()))
    optimizer._keeps_types_when_loading = True  # type: ignore[attr-defined]
