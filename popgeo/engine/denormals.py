"""Treats denormal numbers as zeros on every thread of a step while it runs."""

import sys

import torch

from popgeo.native import library


class DenormalFlushing:
    """A context that makes the calling thread and its parallel regions treat denormal numbers as zeros.

    The end of the context restores the previous setting of each thread. Contexts may be nested. Each thread has its own
    setting; `torch.set_flush_denormal` changes only that of the calling thread. Without the compiled library, or if it
    was built without OpenMP, the other threads keep their setting. In most builds of torch, `torch.exp` ignores the
    setting and still returns denormal numbers; operations that read them treat them as zeros.

    Example:
        >>> with DenormalFlushing():
        ...     print(torch.tensor(1e-30) * 1e-10)
        tensor(0.)
        >>> bool(torch.tensor(1e-30) * 1e-10 > 0)
        True
    """

    _before: int | None = None

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()
        # For one thread, torch's own function takes half the time.
        alone = self._num_threads == 1
        self._set = None if alone else library.function("popgeo_set_denormals", "qq", "q")
        if self._set is None:
            self._before = sys.float_info.min / 2 == 0.0  # whether denormal numbers are zeros now
            torch.set_flush_denormal(True)
        else:
            self._before = self._set(-1, self._num_threads)

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Restore the previous settings; a second call, or a call before the context was entered, is harmless."""
        if self._before is None:
            return
        if self._set is None:
            torch.set_flush_denormal(bool(self._before))
        else:
            self._set(self._before, self._num_threads)
