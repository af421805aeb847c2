"""Delays Ctrl-C while torch records operations: the handler runs at the next operation, where an error is not lost.

Torch calls Python from places where an error would end the process or be lost.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SIGNALS = [getattr(signal, name) for name in ("SIGALRM", "SIGTERM", "SIGINT") if hasattr(signal, name)]
_waiting: list[Callable[[], Any]] = []


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Run handlers of signals between operations and after the block, instead of at any moment.

    A second signal does not wait, so that a model that never ends can be interrupted.

    Example:
        >>> with held_interrupts():
        ...     raise_held()
    """
    before: dict[int, Any] = {}

    def hold(number: int, frame: Any) -> None:
        _waiting.append(lambda: before[number](number, frame))
        if len(_waiting) > 1:
            raise_held()

    hold.holds = True  # type: ignore[attr-defined]
    try:
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            handler = signal.getsignal(number)
            if callable(handler) and not hasattr(handler, "holds"):
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            raise_held()


def raise_held() -> None:
    """Run the handler of the first waiting signal; the handler of Ctrl-C raises KeyboardInterrupt."""
    if _waiting and threading.current_thread() is threading.main_thread():
        run = _waiting[0]
        _waiting.clear()
        run()
