"""The seed of a loader's epochs: a number that is given, or one that the first epoch draws from torch's generator."""

import torch
import torch.distributed as dist

from popgeo.random_numbers import new_key


class EpochSeed:
    """The number that, with the number of an epoch, decides every order and every draw of a loader.

    Args:
        chosen: The number that the user has chosen; None draws one.

    Attributes:
        number: The number, or None before it is drawn.
    """

    def __init__(self, chosen: int | None) -> None:
        self.chosen, self.number = chosen, chosen

    def now(self) -> int:
        """Return the number, or the one that an epoch would draw now; torch's generator stays as it is."""
        if self.number is not None:
            return self.number
        ahead = torch.Generator()
        ahead.set_state(torch.get_rng_state())
        return new_key(ahead)

    def draw(self, num_processes: int | None) -> None:
        """Draw the number from torch's generator, where an epoch begins and none was chosen.

        As in torch's loaders, each epoch that begins takes a number from the generator, also if it needs none. So a run
        that was resumed continues with the random numbers of the whole run, although it may be the first epoch here.

        Args:
            num_processes: How many processes need the same number; None if none depends on another.

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
    """Return the seed of the first process, in each of the processes that share an epoch.

    Args:
        seed: The seed that this process has drawn.
        num_processes: How many processes share the epoch.

    Raises:
        ValueError: these are not the processes of the group of `torch.distributed`.

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
