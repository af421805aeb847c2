"""Denormal numbers taken for zeros while a step runs, on every thread that works for it."""

import sys

import torch

from popgeo.native import library


class DenormalFlushing:
    """Within it the calling thread, and those of its parallel regions, take denormal numbers for zeros.

    Afterwards they all do what the caller did before, also when an exception leaves it. Each thread has a setting of
    its own, which `torch.set_flush_denormal` changes on the calling one only. It may be entered within itself. Without
    the compiled library, or if that was built without OpenMP, the other threads keep theirs. `torch.exp` of most
    builds resets the setting for itself and still makes denormal numbers, which what reads them takes for zeros.

    Example:
        >>> with DenormalsFlushed():
        ...     print(torch.tensor(1e-30) * 1e-10)
        tensor(0.)
        >>> bool(torch.tensor(1e-30) * 1e-10 > 0)
        True
    """

    _before: int | None = None

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()
        # One thread takes torch's own way, which is half as long.
        alone = self._num_threads == 1
        self._set = None if alone else library.function("popgeo_set_denormals", "qq", "q")
        if self._set is None:
            self._before = sys.float_info.min / 2 == 0.0  # whether half the smallest normal number is taken for zero
            torch.set_flush_denormal(True)
        else:
            self._before = self._set(-1, self._num_threads)

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """What leaving it does, also a second time; nothing if it was not entered."""
        if self._before is None:
            return
        if self._set is None:
            torch.set_flush_denormal(bool(self._before))
        else:
            self._set(self._before, self._num_threads)
