"""Which replicas run in this process, what each keeps to itself, and how their gradients meet those of others."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.ops.collective_ops import names_lost_process


@dataclass(frozen=True)
class Replicas:
    """The share of the replicas that this process runs.

    Attributes:
        local: Numbers of the replicas of this process.
        world_size: How many processes share them.
    """

    local: tuple[int, ...]
    world_size: int

    @classmethod
    def of_this_process(cls, replication_factor: int) -> "Replicas":
        """Deals replicas out to the processes of `torch.distributed`, one after the other, if that is initialised.

        Process `rank` gets replicas `rank`, `rank + world_size`, and so on: a loader that deals its batches out in the
        same way gives each replica the batches that it has where a single process runs all of them.

        Raises:
            ValueError: they cannot be divided evenly.

        Example:
            >>> Replicas.of_this_process(4).local
            (0, 1, 2, 3)
        """
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls(tuple(range(replication_factor)), 1)
        world, rank = dist.get_world_size(), dist.get_rank()
        if replication_factor % world:
            raise ValueError(
                f"Options.replication_factor is {replication_factor}, which {world} processes cannot share evenly; "
                f"choose a multiple of {world}."
            )
        return cls(tuple(range(rank, replication_factor, world)), world)

    def add_up(self, gradients: Sequence[Tensor]) -> None:
        """Adds the gradients of all processes, in place.

        Raises:
            RuntimeError: another process has gone.
        """
        if self.world_size > 1:
            with names_lost_process("add up gradients"):
                for gradient in gradients:
                    dist.all_reduce(gradient)

    def hand_on(self, divided: Sequence[Tensor]) -> None:
        """Gives every process the parts of flat tensors that the others have updated, in place.

        Raises:
            RuntimeError: another process has gone.
        """
        if self.world_size > 1 and divided:
            with names_lost_process("hand on updated weights"):
                for tensor in divided:
                    for rank in range(self.world_size):
                        dist.broadcast(tensor[part_of(tensor.numel(), rank, self.world_size)], src=rank)

    def share_weights(self, tensors: Sequence[Tensor]) -> None:
        """Gives every process the weights of the first.

        Raises:
            RuntimeError: another process has gone.
        """
        if self.world_size > 1:
            with names_lost_process("share weights"):
                for tensor in tensors:
                    once = tensor.detach()[tuple(slice(None if step else 1) for step in tensor.stride())]  # if expanded
                    dense = once.contiguous()  # of a strided view, gloo sends what lies in between, too
                    dist.broadcast(dense, src=0)
                    once.copy_(dense)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicaState:
    """What a replica keeps from call to call next to the weights, which all of them share.

    Attributes:
        generator: Source of its random numbers.
        buffers: Its own copies of the buffers that the step changes, by name; a single replica has the module's own.
    """

    generator: torch.Generator
    buffers: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, replica: int, seed: int | None) -> "ReplicaState":
        """Return the state of a replica that begins.

        Args:
            replica: Its number. Replica 0 draws what eager code draws, and each other one has a stream of its own.
            seed: The seed of all streams. None lets replica 0 draw from torch's own generator, and takes the others'
                streams from that generator's seed.
        """
        if seed is None:
            if replica == 0:
                return cls(generator=torch.default_generator)
            seed = torch.initial_seed()
        if replica:
            words = np.random.SeedSequence(seed % 2**64, spawn_key=(replica,)).generate_state(1, np.uint64)
            seed = int(words[0] >> np.uint64(1))
        return cls(generator=torch.Generator().manual_seed(seed))

    @property
    def draws_as_torch(self) -> bool:
        """Whether the replica draws from torch's own generator, as eager code does."""
        return self.generator is torch.default_generator

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
        """Goes on from what a checkpoint holds: where its own generator was, and all the buffers of the replica's own.

        In another mode the step may leave buffers alone that were the replica's own.
        """
        if not self.draws_as_torch:  # `resume.restore_torchs_generator` sets that one, once
            self.generator.set_state(generator)
        places = dict(module.named_buffers())
        self.buffers.update({name: places[name].clone().copy_(tensor) for name, tensor in buffers.items()})


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter is this process's own part of a larger one, marked by an attribute `is_sharded`.

    Processes share neither its weights nor its gradients; whatever they exchange is up to the model, in both
    directions, and the gradient that arrives is that of the sum of all processes' losses.

    Example:
        >>> import torch
        >>> table = torch.nn.Parameter(torch.zeros(2))
        >>> table.is_sharded = True
        >>> is_sharded(table), is_sharded(torch.nn.Parameter(torch.zeros(2)))
        (True, False)
    """
    return bool(getattr(parameter, "is_sharded", False))


def refuse_shared_statistics(model: nn.Module, replicas: int) -> None:
    """Refuses norms whose statistics are of all replicas, where each runs alone.

    Raises:
        ValueError: the model has one, and there are several replicas.
    """
    synced = [name for name, one in model.named_modules() if isinstance(one, nn.SyncBatchNorm)]
    if synced and replicas > 1:
        raise ValueError(
            f"{', '.join(synced)} would share its statistics among {replicas} replicas, each of which runs alone "
            "between two updates. Use BatchNorm1d, whose statistics are a replica's own, a norm within each graph, or "
            "replication_factor=1 and larger micro-batches. A plan (ipu.estimate, ipu.pipeline) has its exchange."
        )


def part_of(numel: int, number: int, parts: int) -> slice:
    """Which of that many elements belong to a part; parts are as equal as can be.

    Example:
        >>> [part_of(10, number, 3) for number in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    return slice(numel * number // parts, numel * (number + 1) // parts)
