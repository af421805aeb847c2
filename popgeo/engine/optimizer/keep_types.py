"""State that is loaded keeps the types in which it was saved; torch rounds it to those of the weights."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.optimizer.precision import NARROW


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
