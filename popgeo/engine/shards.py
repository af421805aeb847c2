"""Models whose weights lie in shards, as `popgeo.nn.parallel` makes them: how many, and the model of some of them.

A module says so by `num_shards`, of which it holds `num_local`, and by a method `local_parts(num_local)`, which gives
for each cut parameter how many shards, in its first dimensions, a process or an IPU has that holds that many of them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


def num_shards(model: object) -> int:
    """How many shards a model's weights lie in; 1 if none are cut.

    Raises:
        ValueError: they lie in different numbers of shards.
    """
    counts = {module.num_shards: name for name, module in _cut_modules(model)}
    if len(counts) > 1:
        named = " and ".join(f"{name} in {count}" for count, name in sorted(counts.items()))
        raise ValueError(f"Layers lie in different numbers of shards, {named}; cut all of them into as many.")
    return next(iter(counts), 1)


def require_all(model: object) -> None:
    """Refuses to train a model here that holds some of its shards only.

    Raises:
        ValueError: it does.
    """
    for name, module in _cut_modules(model):
        if module.num_local < module.num_shards:
            raise ValueError(
                f"{name} holds {module.num_local} of its {module.num_shards} shards, the rest are in other processes. "
                "A compiled step trains all shards in one process; train the part of a model with plain PyTorch."
            )


@contextlib.contextmanager
def only_first(model: object, num_local: int) -> Iterator[None]:
    """Leaves a model its first shards meanwhile, as one IPU or process holds them. Nothing is copied."""
    whole = []
    try:
        for _, module in _cut_modules(model):
            for name, sizes in module.local_parts(num_local).items():
                parameter = getattr(module, name)
                whole.append((parameter, parameter.data))
                parameter.data = parameter.data[tuple(map(slice, sizes))]
        yield
    finally:
        for parameter, data in whole:
            parameter.data = data


def _cut_modules(model: object) -> list[tuple[str, Any]]:
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return [(name, module) for name, module in named if hasattr(module, "local_parts")]
