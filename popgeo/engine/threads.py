"""Measures which number of threads makes a step fastest, and adapts when that changes."""

import time
from collections.abc import Callable

import torch

# A shorter step gains nothing from threads: each parallel region costs several microseconds.
_SHORTEST_SECONDS = 2e-3
# More threads must be faster by this factor, since they take cores from other processes.
_WORTH = 1.1
# A call that is slower than expected by this factor starts a trial of another number.
_TOLERATED = 1.15
# Largest share of the time for repeated trials of other numbers.
_SHARE_FOR_TRIALS = 0.02
_TRIALS = 2


class ThreadChoice:
    """A context that sets the number of threads for a call of a step, and restores the caller's number after it.

    The first call is not measured, since it touches all memory for the first time. The next calls try one thread, then
    two, four and so on up to torch's number, as long as each number is faster than the previous one. If calls become
    slower than expected, another number is tried at once. Otherwise other numbers are tried again so rarely that this
    costs a small share of the time.

    Torch's matrix products may differ in the last bit with the number of threads; the kernels of this library do not.
    Choose a fixed number if every bit must be reproducible.

    Args:
        number: Number of threads of each call. Default: the fastest number, found by measuring.
        clock: Function that returns seconds. Default: `time.perf_counter`.

    Example:
        >>> choice = ThreadChoice(number=1)
        >>> with choice:
        ...     torch.get_num_threads()
        1
    """

    def __init__(self, number: int | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._fixed, self._clock = number, clock
        self._most = 0
        self._warm = False
        self._seconds: dict[int, float] = {}  # last measured time of each number of threads
        self._trials: list[int] = []  # numbers of threads to try in the next calls
        self._since_trial = 0.0
        self._cost_of_trial = 0.0

    @property
    def picked(self) -> int | None:
        """The present number of threads of a call; None while numbers are being tried."""
        if self._fixed is not None:
            return self._fixed
        if self._most == 1:
            return 1
        return None if self._trials or not self._seconds else self._best()

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        self._number = self._fixed or self._next(self._before)
        if self._number != self._before:
            torch.set_num_threads(self._number)
        self._start = self._clock()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        seconds = self._clock() - self._start
        if self._number != self._before:
            torch.set_num_threads(self._before)
        if self._fixed is not None or kind is not None:
            return
        if not self._warm:
            self._warm = True
        elif self._trials:
            self._learn_from_trial(self._number, seconds)
        elif len(self._seconds) > 1:
            self._watch(self._number, seconds)

    def _next(self, most: int) -> int:
        """Return the number of threads of the next call, at most `most`."""
        if most != self._most:
            self._most, self._seconds = most, {}
            self._trials = [1] * _TRIALS
        return self._trials[0] if self._trials else self._best()

    def _learn_from_trial(self, number: int, seconds: float) -> None:
        self._trials.pop(0)
        self._seconds[number] = min(seconds, self._seconds.get(number, seconds))
        one = self._seconds.get(1, seconds)
        self._cost_of_trial = max(seconds - min(self._seconds.values()), 0.0)
        if seconds > _TOLERATED * one:
            self._trials = []  # a number that is so slow needs no second trial
        following = min(2 * number, self._most)
        is_worth = not self._trials and self._best() == number and one >= _SHORTEST_SECONDS
        if is_worth and following not in self._seconds:
            self._trials = [following] * _TRIALS

    def _watch(self, number: int, seconds: float) -> None:
        """Note the time of a call, and start a trial if calls become slow or a trial is due."""
        self._since_trial += seconds
        if number > 1 and seconds > _TOLERATED * self._seconds[1]:
            self._seconds = dict.fromkeys([n for n in self._seconds if n > 1], seconds)
            self._trials = [1]
            return
        self._seconds[number] = 0.75 * self._seconds[number] + 0.25 * seconds
        if self._since_trial * _SHARE_FOR_TRIALS > max(self._cost_of_trial, seconds):
            self._since_trial = 0.0
            if number > 1:
                self._seconds.pop(1)
                self._trials = [1]
            else:
                self._seconds = {1: self._seconds[1]}
                self._trials = [2]

    def _best(self) -> int:
        best = 1
        for number in sorted(self._seconds):
            if self._seconds[number] * _WORTH < self._seconds.get(best, float("inf")):
                best = number
        return best
