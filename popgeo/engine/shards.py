"""Models with sharded weights, such as the layers of `popgeo.nn.parallel`.

A sharded module has the attributes `num_shards`, the number of all shards, and `num_local`, the number of its shards
here. Its method `local_parts(num_local)` returns for each sharded parameter the sizes of its first dimensions on a
process or an IPU that holds `num_local` shards.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


def num_shards(model: object) -> int:
    """Return the number of shards of a model's weights; 1 without sharded modules.

    Raises:
        ValueError: the modules have different numbers of shards.
    """
    counts = {module.num_shards: name for name, module in _cut_modules(model)}
    if len(counts) > 1:
        named = " and ".join(f"{name} in {count}" for count, name in sorted(counts.items()))
        raise ValueError(f"Layers have different numbers of shards, {named}. Give all layers the same number.")
    return next(iter(counts), 1)


def require_all(model: object) -> None:
    """Check that a model to train holds all of its shards.

    Raises:
        ValueError: a module holds only some of its shards.
    """
    for name, module in _cut_modules(model):
        if module.num_local < module.num_shards:
            raise ValueError(
                f"{name} holds {module.num_local} of its {module.num_shards} shards; other processes hold the rest. "
                "A compiled step trains all shards in one process; train the part of a model with plain PyTorch."
            )


@contextlib.contextmanager
def only_first(model: object, num_local: int) -> Iterator[None]:
    """Reduce a model to its first shards for the time of a block, as on one IPU or process; nothing is copied."""
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
