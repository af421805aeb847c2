"""When the steps of a call began and ended, as PopTorch's performance counters, and trace points."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from popgeo.compat.account import ignored

Counters = dict[str, list[list[float]]]
Latency = tuple[float, float, float]


class CallTimesMixin:
    """A model whose calls are timed on this computer: PopTorch's names for what can be asked of that.

    The time of a call is divided evenly over its steps. Inputs and results lie in the memory that steps compute in, so
    that no time passes between an event and its completion.

    Example:
        >>> model = HasCallTimes()
        >>> with model._timed(num_inputs=2, num_steps=4):
        ...     model._results = 1, 2
        >>> counters = model.getPerfCounters()
        >>> len(counters["input"]), len(counters["input"][0]), len(counters["output"][0])
        (2, 4, 2)
    """

    _start = _end = 0.0  # of the last call
    _inputs = _results = (1, 0)  # of the last call: how many tensors, and of how many steps

    @contextmanager
    def _timed(self, *, num_inputs: int, num_steps: int) -> Iterator[None]:
        """Measures a call of that many micro-batches; a call that fails leaves the last one's times."""
        start = time.perf_counter()
        yield
        self._start, self._end = start, time.perf_counter()
        self._inputs = num_inputs, num_steps

    def _seconds(self, num_tensors: int, num_steps: int, after: int) -> list[list[float]]:
        share = (self._end - self._start) / max(1, num_steps)
        ticks = [self._start + (step + after) * share for step in range(num_steps)]
        return [list(ticks) for _ in range(max(1, num_tensors))]

    def getPerfCounters(self) -> Counters:
        """Seconds at which the steps of the last call got their inputs and gave their results, on this computer."""
        inputs, results = self._seconds(*self._inputs, after=0), self._seconds(*self._results, after=1)
        return {"input": inputs, "input_complete": inputs, "output": results, "output_complete": results}

    def getLatency(self) -> Latency:
        """Shortest, longest and mean seconds from a step's inputs to its results, if these are returned."""
        (_, begun), (_, returned) = self._inputs, self._results
        return ((self._end - self._start) / returned if begun and returned else 0.0,) * 3  # as time is divided evenly

    getComputeLatency = getLatency

    def getHostIpuLatency(self) -> Latency:
        """Shortest, longest and mean seconds in which a step gets its inputs, which lie where it computes."""
        return 0.0, 0.0, 0.0

    getIpuHostLatency = getHostIpuLatency


T = TypeVar("T")


class Channel:
    """A named set of trace points that are not recorded.

    Example:
        >>> with Channel("training").tracepoint("epoch"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        self.name = name
        ignored("profiling.Channel", "Graphcore's profiler is not used here; executor.report tells where cycles go")

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """The block would be one event of the trace."""
        yield

    def instrument(self, obj: T, *methods: str) -> T:
        """The object itself, whose methods would be events of the trace."""
        return obj
