"""A stretch of native calls that run one after the other in compiled code."""

import ctypes
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from popgeo.engine.program.native_call import NativeCall
from popgeo.native import library

# A stretch returns to Python after this time at the latest, so that an interrupt need not wait for the end of a step.
_LONGEST = 20_000_000  # nanoseconds


class Stretch:
    """Native calls that run as one call of compiled code.

    Args:
        calls: The native calls, in order.
        sources: Number of threads, and the address of each input, at present. The owner may change them between runs.
            int64 [1 + num_inputs]
        spans: For each input that moves, its number, its first address and its bytes. Words of the calls in this memory
            follow the input.
        decline: Function to call with the index of a native call that did not compute its results.
        pauses: Whether the stretch returns to Python from time to time, where an interrupt can stop it.
    """

    def __init__(
        self,
        calls: Sequence[NativeCall],
        sources: np.ndarray,
        spans: Sequence[tuple[int, int, int]],
        decline: Callable[[int], object],
        pauses: bool,
    ) -> None:
        run = library.function("popgeo_run", "Pq", "q")
        assert run is not None, "native calls exist only where the library is available"
        self._run, self._decline = run, decline
        table = np.array([(_address_of(call.function), call.words.ctypes.data) for call in calls], np.int64)
        moving = np.array([*_moving_words(calls, spans)], np.int64).reshape(-1, 3)
        longest = _LONGEST if pauses else 0
        places = table.ctypes.data, len(table), moving.ctypes.data, len(moving), sources.ctypes.data, longest
        header = np.array(places, np.int64)
        self._address = header.ctypes.data
        self._held = header, table, moving, sources, calls

    def __call__(self) -> None:
        """Run the calls."""
        at = 0
        while at := self._run(self._address, at):
            if at < 0:
                self._decline(-1 - at)
                at = -at


def _address_of(name: str) -> int:
    function = library.packed(name)
    assert function is not None
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]  # a function of ctypes


def _moving_words(calls: Sequence[NativeCall], spans: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the address of each word that follows a source, the number of the source, and the distance from it."""
    for call in calls:
        if call.num_threads is not None:
            yield call.words.ctypes.data + 8 * call.num_threads, 0, 0
        for table in (call.words, *call.tables):
            words = table.reshape(-1)
            for number, first, nbytes in spans:
                for index in np.flatnonzero((words >= first) & (words < first + nbytes)).tolist():
                    yield words.ctypes.data + 8 * index, 1 + number, int(words[index]) - first
