"""When the steps of a call began and ended, as PopTorch's performance counters, and trace points."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from popgeo.compat.account import ignored

Counters = dict[str, list[list[float]]]
_EVENTS = ("input", "input_complete", "output", "output_complete")
Latency = tuple[float, float, float]


class CallTimes:
    """The wall time of the last call on this computer, divided evenly over its steps.

    Inputs and results lie in the memory that steps compute in, so that no time passes between an event and its
    completion.

    Example:
        >>> times = CallTimes()
        >>> with times.of_a_call(num_inputs=2, num_steps=4):
        ...     pass
        >>> times.set_results(num_results=1, num_steps=2)
        >>> counters = times.counters()
        >>> len(counters["input"]), len(counters["input"][0]), len(counters["output"][0])
        (2, 4, 2)
    """

    def __init__(self) -> None:
        self._start = self._end = 0.0
        self._inputs, self._results = (1, 0), (1, 0)

    @contextmanager
    def of_a_call(self, *, num_inputs: int, num_steps: int) -> Iterator[None]:
        """Measures a call of that many micro-batches; a call that fails leaves the last one's times."""
        start = time.perf_counter()
        yield
        self._start, self._end = start, time.perf_counter()
        self._inputs = (num_inputs, num_steps)

    def set_results(self, *, num_results: int, num_steps: int) -> None:
        """Tells how many tensors the call returned, and of how many steps."""
        self._results = (num_results, num_steps)

    def counters(self) -> Counters:
        """Seconds of each event, by tensor and step."""
        inputs, results = self._ticks(*self._inputs, after=0), self._ticks(*self._results, after=1)
        return dict(zip(_EVENTS, (inputs, inputs, results, results), strict=True))

    def latency(self) -> Latency:
        """Shortest, longest and mean time from a step's inputs to its results, where these are returned."""
        (_, begun), (_, returned) = self._inputs, self._results
        return ((self._end - self._start) / returned if begun and returned else 0.0,) * 3  # as time is divided evenly

    def _ticks(self, num_tensors: int, num_steps: int, after: int) -> list[list[float]]:
        share = (self._end - self._start) / max(1, num_steps)
        ticks = [self._start + (step + after) * share for step in range(num_steps)]
        return [list(ticks) for _ in range(max(1, num_tensors))]


class HasCallTimes:
    """A model whose calls are timed: PopTorch's names for what can be asked of that."""

    _times: CallTimes

    def getPerfCounters(self) -> Counters:
        """Seconds at which the steps of the last call got their inputs and gave their results, on this computer."""
        return self._times.counters()

    def getLatency(self) -> Latency:
        """Shortest, longest and mean seconds from a step's inputs to its results."""
        return self._times.latency()

    getComputeLatency = getLatency

    def getHostIpuLatency(self) -> Latency:
        """Shortest, longest and mean seconds in which a step gets its inputs, which lie if it computes."""
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
