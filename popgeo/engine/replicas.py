"""The replicas of this process, the state of each replica, and the exchange of gradients between processes."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from popgeo.engine.optimizer.pairwise_sum import PairwiseSum
from popgeo.ops.lost_process import names_lost_process


@dataclass(frozen=True)
class Replicas:
    """The replicas that this process runs.

    Attributes:
        local: Numbers of the replicas of this process.
        world_size: Number of processes that share all replicas.
    """

    local: tuple[int, ...]
    world_size: int

    @classmethod
    def of_this_process(cls, replication_factor: int, trains: bool = True) -> "Replicas":
        """Return the replicas of this process; they are distributed in turn over the processes of `torch.distributed`.

        Process `rank` gets replicas `rank`, `rank + world_size`, and so on. If a loader distributes its batches in the
        same way, each replica gets the same batches as in a single process. A single replica that does not train has
        nothing to exchange, so every process has its own.

        Raises:
            ValueError: the processes cannot share the replicas evenly.

        Example:
            >>> Replicas.of_this_process(4).local
            (0, 1, 2, 3)
        """
        is_grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if not is_grouped or (replication_factor == 1 and not trains):
            return cls(tuple(range(replication_factor)), 1)
        world, rank = dist.get_world_size(), dist.get_rank()
        if replication_factor % world:
            raise ValueError(
                f"Options.replication_factor is {replication_factor}, which {world} processes cannot share evenly; "
                f"choose a multiple of {world}."
            )
        return cls(tuple(range(rank, replication_factor, world)), world)

    def require_one_per_gpu(self, device: torch.device) -> None:
        """Check that this process runs one replica, and that a CUDA graph can hold its exchange of gradients.

        Raises:
            ValueError: it runs several, or the processes exchange tensors of `device` by gloo.
        """
        if len(self.local) > 1:
            raise ValueError(
                f"Options.replication_factor is {len(self.local) * self.world_size}, but a process runs one replica on "
                f"its GPU. Choose {self.world_size}, the number of processes, or start more of them by torchrun."
            )
        if self.world_size > 1 and device.type == "cuda" and "cuda:nccl" not in dist.get_backend_config():
            raise ValueError(
                f"The processes exchange tensors by {dist.get_backend_config()}, but a CUDA graph can hold only NCCL's "
                "exchange. Call torch.distributed.init_process_group('nccl')."
            )

    def wait_for(self, event: Any, device: torch.device) -> None:
        """Wait for an event after an exchange on a device.

        Raises:
            RuntimeError: the exchange takes longer than the process group's time-out, as after the loss of a process.
        """
        if self.world_size > 1 and not event.query():
            limit = dist.group.WORLD._get_backend(device).options._timeout.total_seconds()  # type: ignore[union-attr]
            end = time.monotonic() + limit
            with names_lost_process("add up gradients"):
                while not event.query():
                    if time.monotonic() > end:
                        raise RuntimeError(f"There was no answer in {limit:g} seconds.")
                    time.sleep(1e-4)

    def add_up(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradients of all processes, in place.

        Raises:
            RuntimeError: another process has ended or does not answer.
        """
        if self.world_size > 1:
            with names_lost_process("add up gradients"):
                for gradient in gradients:
                    dist.all_reduce(gradient)

    def add_up_in_blocks(self, parameters: Sequence[Tensor]) -> None:
        """Add the gradients of all processes, one block of memory per type; gradients become views of their block.

        The blocks hold the gradients in the order of the parameters. Gradients of shards stay as they are.

        Raises:
            RuntimeError: another process has ended or does not answer.
        """
        if self.world_size == 1:
            return
        given = [(one, one.grad) for one in parameters if one.grad is not None and not is_sharded(one)]
        for dtype in dict.fromkeys(gradient.dtype for _, gradient in given):
            parts = [(one, gradient) for one, gradient in given if gradient.dtype == dtype]
            block = torch.cat([gradient.flatten() for _, gradient in parts])
            self.add_up([block])
            for (one, _), part in zip(parts, block.split([one.numel() for one, _ in parts]), strict=True):
                one.grad = part.view(one.shape)

    def add_up_in_pairs(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradients of all processes in place, in the order of `PairwiseSum`.

        Raises:
            RuntimeError: another process has ended or does not answer.
        """
        if self.world_size > 1:
            with names_lost_process("add up gradients"):
                for gradient in gradients:
                    parts, total = [torch.empty_like(gradient) for _ in range(self.world_size)], PairwiseSum([gradient])
                    dist.all_gather(parts, gradient)
                    for part in parts:
                        total.add([part])
                    total.finish()

    def hand_on(self, divided: Sequence[Tensor]) -> None:
        """Exchange the parts of flat tensors that each process has updated, in place.

        Raises:
            RuntimeError: another process has ended or does not answer.
        """
        if self.world_size > 1 and divided:
            with names_lost_process("hand on updated weights"):
                for tensor in divided:
                    for rank in range(self.world_size):
                        dist.broadcast(tensor[part_of(tensor.numel(), rank, self.world_size)], src=rank)

    def share_weights(self, tensors: Sequence[Tensor]) -> None:
        """Copy the weights of the first process to all processes.

        Raises:
            RuntimeError: another process has ended or does not answer.
        """
        if self.world_size > 1:
            with names_lost_process("share weights"):
                for tensor in tensors:
                    # One element of each expanded dimension.
                    once = tensor.detach()[tuple(slice(None if step else 1) for step in tensor.stride())]
                    dense = once.contiguous()  # of a strided view, gloo would also send the bytes in between
                    dist.broadcast(dense, src=0)
                    once.copy_(dense)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicaState:
    """The state of a replica between calls; all replicas share the weights.

    Attributes:
        generator: Source of its random numbers.
        buffers: Copies of the buffers that the step changes, by name. A single replica uses the module's buffers.
    """

    generator: torch.Generator
    buffers: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, replica: int, seed: int | None) -> "ReplicaState":
        """Return the initial state of a replica.

        Args:
            replica: Number of the replica. Replica 0 draws the numbers of eager code; the others have other streams.
            seed: Seed of all streams. None lets replica 0 draw from torch's own generator, whose seed also determines
                the streams of the others.
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
        """Copy a module's buffers of these names, and update the buffers that the replica already has."""
        buffers = dict(module.named_buffers())
        self.buffers.update({name: buffers[name].clone() for name in (*names, *self.buffers)})

    def show(self, module: nn.Module) -> dict[str, Tensor]:
        """Copy the replica's buffers to a module; return the module's buffers if the replica has its own."""
        buffers = dict(module.named_buffers()) if self.buffers else {}
        for name, tensor in self.buffers.items():
            buffers[name].copy_(tensor)
        return buffers

    @contextlib.contextmanager
    def lent_to(self, module: nn.Module) -> Iterator[None]:
        """Copy the replica's buffers to a module while a block runs, and then copy their new values back."""
        buffers = self.show(module)
        yield
        for name, tensor in self.buffers.items():
            tensor.copy_(buffers[name])

    def restore(self, generator: Tensor, buffers: dict[str, Any], module: nn.Module) -> None:
        """Continue from a checkpoint.

        The replica takes all buffers of the checkpoint, even those that the step in its present mode does not change.

        Args:
            generator: State of the replica's generator.
            buffers: Values of the replica's buffers, by name.
            module: The module, which has buffers of these names.
        """
        if not self.draws_as_torch:  # `resume.restore_torchs_generator` sets torch's own generator, once
            self.generator.set_state(generator)
        places = dict(module.named_buffers())
        self.buffers.update({name: places[name].clone().copy_(tensor) for name, tensor in buffers.items()})


def is_sharded(parameter: Tensor) -> bool:
    """Return whether a parameter is this process's shard of a larger parameter, marked by an attribute `is_sharded`.

    The engine does not exchange weights or gradients of shards. The model exchanges values in its forward and backward
    passes, so a shard's gradient already belongs to the sum of all processes' losses.

    Example:
        >>> import torch
        >>> table = torch.nn.Parameter(torch.zeros(2))
        >>> table.is_sharded = True
        >>> is_sharded(table), is_sharded(torch.nn.Parameter(torch.zeros(2)))
        (True, False)
    """
    return bool(getattr(parameter, "is_sharded", False))


def refuse_wrapped(model: nn.Module) -> None:
    """Check that no part of a model on a GPU exchanges gradients by itself, since the step does so.

    Raises:
        ValueError: a part of the model is wrapped in DistributedDataParallel.
    """
    if any(isinstance(part, DistributedDataParallel) for part in model.modules()):
        raise ValueError(
            "The model is wrapped in DistributedDataParallel, but a step on a GPU adds up the gradients of all "
            "processes itself. Pass the module inside, model.module (accelerate: accelerator.unwrap_model(model)), "
            "with StepOptions(replication_factor=torch.distributed.get_world_size())."
        )


def refuse_shared_statistics(model: nn.Module, replicas: int) -> None:
    """Check that no norm shares its statistics among replicas, since each replica runs alone.

    Raises:
        ValueError: the model has a SyncBatchNorm, and there are several replicas.
    """
    synced = [name for name, one in model.named_modules() if isinstance(one, nn.SyncBatchNorm)]
    if synced and replicas > 1:
        raise ValueError(
            f"{', '.join(synced)} would share its statistics among {replicas} replicas, each of which runs alone "
            "between two updates. Use BatchNorm1d, which keeps statistics per replica, a norm within each graph, or "
            "replication_factor=1 and larger micro-batches. Plans (ipu.estimate, ipu.pipeline) do model such a norm."
        )


def part_of(numel: int, number: int, parts: int) -> slice:
    """Return the elements of part `number` if `numel` elements are divided into parts as equal as possible.

    Example:
        >>> [part_of(10, number, 3) for number in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    return slice(numel * number // parts, numel * (number + 1) // parts)
