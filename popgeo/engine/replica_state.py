"""What the replicas of a step keep to themselves while all of them share the weights."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicaState:
    """What a replica keeps from call to call next to the weights, which all of them share.

    Attributes:
        generator: If it draws random numbers.
        buffers: Its own copies of the buffers that the step changes, by name; a single replica has the module's own.
    """

    generator: torch.Generator
    buffers: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, replica: int, seed: int) -> "ReplicaState":
        """Replica 0 draws what PyTorch draws after `torch.manual_seed(seed)`; the others have streams of their own."""
        if replica:
            words = np.random.SeedSequence(seed % 2**64, spawn_key=(replica,)).generate_state(1, np.uint64)
            seed = int(words[0] >> np.uint64(1))
        return cls(generator=torch.Generator().manual_seed(seed))

    def copy_buffers(self, module: nn.Module, names: Sequence[str]) -> None:
        """Takes a module's buffers of these names, and of those that the replica has, as they are now."""
        buffers = dict(module.named_buffers())
        self.buffers.update({name: buffers[name].clone() for name in (*names, *self.buffers)})

    def show(self, module: nn.Module) -> dict[str, Tensor]:
        """Gives a module the replica's buffers; those of the module, if the replica has any of its own."""
        buffers = dict(module.named_buffers()) if self.buffers else {}
        for name, tensor in self.buffers.items():
            buffers[name].copy_(tensor)
        return buffers

    @contextlib.contextmanager
    def lent_to(self, module: nn.Module) -> Iterator[None]:
        """Lets a module have the replica's buffers for a while, and takes what becomes of them."""
        buffers = self.show(module)
        yield
        for name, tensor in self.buffers.items():
            tensor.copy_(buffers[name])

    def restore(self, generator: Tensor, buffers: dict[str, Any], module: nn.Module) -> None:
        """Goes on from what a checkpoint holds: where the generator was, and all the buffers of the replica's own.

        In another mode the step may leave buffers alone that were the replica's own.
        """
        self.generator.set_state(generator)
        places = dict(module.named_buffers())
        self.buffers.update({name: places[name].clone().copy_(tensor) for name, tensor in buffers.items()})
