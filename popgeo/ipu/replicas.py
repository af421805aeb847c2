"""Which replicas run in this process, and how gradients meet those of the other processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


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
        """Divides replicas evenly over the processes of `torch.distributed`, if that is initialised.

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
        share = replication_factor // world
        return cls(tuple(range(rank * share, (rank + 1) * share)), world)

    def add_up(self, gradients: Sequence[Tensor]) -> None:
        """Adds the gradients of all processes, in place.

        Raises:
            RuntimeError: another process has gone.
        """
        if self.world_size == 1:
            return
        try:
            for gradient in gradients:
                dist.all_reduce(gradient)
        except RuntimeError as error:
            raise RuntimeError(
                f"Process {dist.get_rank()} of {self.world_size} could not add up gradients: another process has died "
                "or does not answer. Start all of them again from the last checkpoint."
            ) from error

    def share_weights(self, tensors: Sequence[Tensor]) -> None:
        """Gives every process the weights of the first."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)
