"""The seed of a loader's epochs, given by the user or drawn from torch's generator in the first epoch."""

import torch
import torch.distributed as dist

from popgeo.random_numbers import new_key


class EpochSeed:
    """The number that decides every order and every draw of a loader, together with the number of an epoch.

    Args:
        chosen: Number that the user chose; None draws one.

    Attributes:
        number: The number, or None before it is drawn.
    """

    def __init__(self, chosen: int | None) -> None:
        self.chosen, self.number = chosen, chosen

    def now(self) -> int:
        """Return the seed, or the seed that an epoch would draw now, without a change of torch's generator."""
        if self.number is not None:
            return self.number
        ahead = torch.Generator()
        ahead.set_state(torch.get_rng_state())
        return new_key(ahead)

    def draw(self, num_processes: int | None) -> None:
        """Draw the seed from torch's generator when an epoch begins, unless the user chose a seed.

        As in torch's loaders, each epoch that begins takes a number from the generator, even if it needs none. A
        resumed run thus has the random numbers of an uninterrupted run, although it begins with a later epoch.

        Args:
            num_processes: Number of processes that need the same number; None if each may have its own.

        Raises:
            ValueError: the processes have no group in which they can agree.
        """
        if self.chosen is None:
            drawn = new_key(None)
            if self.number is None:
                self.number = drawn if num_processes is None else agreed(drawn, num_processes)

    def __str__(self) -> str:
        return "" if self.number == self.chosen else f"; seed {self.number}"


def agreed(seed: int, num_processes: int) -> int:
    """Return the first process's seed in every process that shares an epoch.

    Args:
        seed: Seed that this process has drawn.
        num_processes: Number of processes that share the epoch.

    Raises:
        ValueError: the group of `torch.distributed` has a different number of processes.

    Example:
        >>> agreed(7, 1)
        7
    """
    group = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if group != num_processes:
        raise ValueError(
            f"A loader for {num_processes} of the processes has no seed, and torch.distributed has "
            f"{f'a group of {group}' if group > 1 else 'no group'}: they cannot agree on one. Pass the same number to "
            "each process that needs the same order, such as seed=0."
        )
    if group == 1:
        return seed
    found = [seed]
    dist.broadcast_object_list(found, src=0)
    return found[0]
