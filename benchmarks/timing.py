"""Measurement for every benchmark: one thread, variants in turn, medians, ratios to a peer in the same run."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
import tqdm

T = TypeVar("T")


def measure(
    variants: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    min_seconds: float = 0.02,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return the median seconds of one call of each variant.

    The variants take turns, so that other load slows all of them; each turn repeats the call until `min_seconds`
    have passed. The default clock counts the processor time of this process, which at one thread is wall time on a
    quiet machine and does not count the time that other processes take on a busy one.

    Args:
        variants: Functions without arguments, by name.
        rounds: Turns of each variant, after a first turn to warm up.
        min_seconds: Minimum length of a turn.
        clock: Clock in seconds; pass `time.perf_counter` if several threads or processes work for one variant.

    Example:
        >>> seconds = measure({"sum": lambda: sum(range(100)), "more": lambda: sum(range(9999))}, rounds=3)
        >>> seconds["more"] > seconds["sum"]
        True
    """
    repeats = {name: _repeats(call, min_seconds, clock) for name, call in variants.items()}
    turns: dict[str, list[float]] = {name: [] for name in variants}
    for _ in tqdm.trange(rounds, leave=False, disable=not sys.stderr.isatty()):
        for name, call in variants.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            turns[name].append((clock() - start) / repeats[name])
    return {name: statistics.median(seconds) for name, seconds in turns.items()}


def _repeats(call: Callable[[], object], min_seconds: float, clock: Callable[[], float]) -> int:
    call()
    start, count = clock(), 0
    while clock() - start < min_seconds:
        call()
        count += 1
    return max(1, count)


def flushed(call: Callable[[], T]) -> Callable[[], T]:
    """Return the call with denormal numbers flushed to zero (`torch.set_flush_denormal(True)`).

    Example:
        >>> tiny = torch.tensor(1e-30)
        >>> flushed(lambda: print(tiny * 1e-10))()
        tensor(0.)
    """

    def run() -> T:
        torch.set_flush_denormal(True)
        try:
            return call()
        finally:
            torch.set_flush_denormal(False)

    return run


def both_ways(variants: Mapping[str, Callable[[], T]]) -> dict[str, Callable[[], T]]:
    """Return each variant with torch's defaults and, as `..., flushed`, with denormal numbers flushed to zero."""
    return {k: v for name, call in variants.items() for k, v in ((name, call), (f"{name}, flushed", flushed(call)))}


def one_thread() -> None:
    """Set torch to one thread: on a busy machine, two threads lose whole scheduler slices."""
    torch.set_num_threads(1)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of ratios; for 2 and 0.5 it is 1.

    Example:
        >>> geometric_mean([2.0, 0.5])
        1.0
    """
    return statistics.geometric_mean(ratios)
