"""Times of a call's steps as PopTorch's performance counters, and trace points."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from popgeo.compat.account import ignored

Counters = dict[str, list[list[float]]]
Latency = tuple[float, float, float]


class CallTimesMixin:
    """Mixin that times a model's calls on this computer, with PopTorch's names for the results.

    The time of a call is divided evenly over its steps. Inputs and results are in the memory of the computation, so
    each event completes at once.

    Example:
        >>> model = CallTimesMixin()
        >>> with model._timed(num_inputs=2, num_steps=4):
        ...     model._results = 1, 2
        >>> counters = model.getPerfCounters()
        >>> len(counters["input"]), len(counters["input"][0]), len(counters["output"][0])
        (2, 4, 2)
    """

    _start = _end = 0.0  # of the last call
    _inputs = _results = (1, 0)  # of the last call: number of tensors, number of steps

    @contextmanager
    def _timed(self, *, num_inputs: int, num_steps: int) -> Iterator[None]:
        """Measure a call of `num_steps` micro-batches. A failed call keeps the times of the call before."""
        start = time.perf_counter()
        yield
        self._start, self._end = start, time.perf_counter()
        self._inputs = num_inputs, num_steps

    def _seconds(self, num_tensors: int, num_steps: int, after: int) -> list[list[float]]:
        share = (self._end - self._start) / max(1, num_steps)
        ticks = [self._start + (step + after) * share for step in range(num_steps)]
        return [list(ticks) for _ in range(max(1, num_tensors))]

    def getPerfCounters(self) -> Counters:
        """Return the seconds at which each step of the last call got its inputs and gave its results."""
        inputs, results = self._seconds(*self._inputs, after=0), self._seconds(*self._results, after=1)
        return {"input": inputs, "input_complete": inputs, "output": results, "output_complete": results}

    def getLatency(self) -> Latency:
        """Return the shortest, longest and mean seconds from inputs to results. Zeros without results."""
        (_, begun), (_, returned) = self._inputs, self._results
        seconds = (self._end - self._start) / returned if begun and returned else 0.0  # the same for every step
        return seconds, seconds, seconds

    getComputeLatency = getLatency

    def getHostIpuLatency(self) -> Latency:
        """Return the shortest, longest and mean seconds of a step's inputs: zeros, since inputs need no transfer."""
        return 0.0, 0.0, 0.0

    getIpuHostLatency = getHostIpuLatency


T = TypeVar("T")


class Channel:
    """Named group of trace points, which are not recorded.

    Example:
        >>> with Channel("training").tracepoint("epoch"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        self.name = name
        ignored("profiling.Channel", "Graphcore's profiler is not used here; executor.report shows the cycles")

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Run the block, which would be one event of a trace."""
        yield

    def instrument(self, obj: T, *methods: str) -> T:
        """Return the object unchanged. Its methods would be events of a trace."""
        return obj
