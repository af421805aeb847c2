"""An optimizer's state and settings by the names that PopART gives them, as PopTorch's checkpoints hold them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.compat.poptorch.errors import said
from popgeo.engine.loss_scaling import LossScale

_PREFIXES = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "square_avg": "Accl1", "grad_avg": "Accl2"}
_PREFIXES |= {"momentum_buffer": "Accl3"}  # SGD's aside, which has no other
_NEEDED = {"grad_avg": "centered", "momentum_buffer": "momentum"}  # settings without which there is no such state
Names = Mapping[nn.Parameter, str]


def named_state(optimizer: Any, names: Names, state: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    """The state of each parameter, of which there is that of `state_dict`; zeros if there has been no update."""
    numbers = {p: number for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    places = _places(optimizer, names)
    return {name: state.get(numbers[p], {}).get(key, torch.zeros(shape)) for name, p, key, shape in places}


def named_settings(optimizer: Any, names: Names, follows: LossScale | None) -> dict[str, Tensor]:
    """Numbers of the next update: rates and decays of each parameter, and the scale of the loss.

    A scale that `follows` gradients has a factor, too: how many times its first value it is now.
    """
    scale = float(optimizer.loss_scaling)
    found = {"lossScaling_FLOAT": torch.tensor(scale)}
    if follows is not None:
        found["lossScaleUpdateFactor"] = torch.tensor(follows.value / follows.rule.initial)
    for group in optimizer.param_groups:
        numbers = {"learningRate": group["lr"], "weightDecay": group["weight_decay"]}
        if isinstance(optimizer, torch.optim.SGD):
            rate = group["lr"] * (1 - group["dampening"])
            numbers = {"scaledLearningRate0": rate / scale, "weightDecayScaleFactor0": 1 - rate * group["weight_decay"]}
        for own in (names[parameter] for parameter in group["params"] if parameter in names):
            found |= {f"{name}___specific___{own}": torch.tensor(float(number)) for name, number in numbers.items()}
    return found


def take_state(optimizer: Any, names: Names, loaded: Mapping[str, Tensor]) -> None:
    """Gives an optimizer the state that a checkpoint holds; the rest of a parameter's starts at zero, or stays.

    Until SDK 2.6 names had `model.` before the parameter, which is understood, too.

    Raises:
        ValueError: the optimizer does not keep some of the state, which would be lost.
    """
    places = list(_places(optimizer, names))
    own = {name for name, *_ in places}
    older = {name.replace("___model.", "___", 1): part for name, part in loaded.items()}
    loaded = max(loaded, older, key=lambda held: len(held.keys() & own))
    if strange := sorted(loaded.keys() - own):
        kind, known = type(optimizer).__name__, ", ".join(sorted(own)) or "no state"
        raise ValueError(said("take_state", strange=", ".join(strange), kind=kind, known=known))
    met = {parameter for name, parameter, _, _ in places if name in loaded}
    for name, parameter, key, shape in places:
        if parameter in met:
            held = optimizer.state[parameter]
            part = loaded.get(name, held.get(key, torch.zeros(shape)))
            held[key] = part.detach().clone().reshape(shape)


def _places(optimizer: Any, names: Names) -> Iterator[tuple[str, nn.Parameter, str, torch.Size]]:
    """PopART's name of each part of the state: whose it is, torch's name of it, and its shape."""
    own = {"momentum_buffer": "Accl1"} if isinstance(optimizer, torch.optim.SGD) else {"step": "Step"}
    prefixes = {key: _PREFIXES[key] for keys in optimizer.types.values() for key in keys} | own
    for group in optimizer.param_groups:
        for key, prefix in prefixes.items():
            for p in group["params"] if group.get(_NEEDED.get(key), True) else ():
                if p in names:
                    yield f"{prefix}___{names[p]}", p, key, torch.Size() if key == "step" else p.shape
