"""The account of what an old program asked for: honoured, recorded for the machine model, or without meaning here."""

from collections.abc import Iterator
from enum import Enum

import pandas as pd


class Treatment(Enum):
    """What became of something that a program asked of PopTorch."""

    HONOURED = "honoured"  # it changes results or time here as it did there
    RECORDED = "recorded"  # it changes the modelled machine, not the results
    IGNORED = "ignored"  # it can mean nothing here


class Account:
    """What a program asked for, each thing once, in the order of first use.

    Example:
        >>> account = Account()
        >>> account.add("Options.autoRoundNumIPUs", Treatment.IGNORED, "there are no IPUs to reserve")
        >>> [(asked, treatment.value) for asked, treatment, because in account]
        [('Options.autoRoundNumIPUs', 'ignored')]
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Treatment, str]] = {}

    def add(self, asked: str, treatment: Treatment, because: str = "") -> None:
        self._entries.setdefault(asked, (treatment, because))

    def clear(self) -> None:
        self._entries.clear()

    def __iter__(self) -> Iterator[tuple[str, Treatment, str]]:
        return iter((asked, treatment, because) for asked, (treatment, because) in self._entries.items())


ACCOUNT = Account()  # of this process: old programs know only module-level functions


def honoured(asked: str, because: str = "") -> None:
    """Enters something that works here as it did there into the account."""
    ACCOUNT.add(asked, Treatment.HONOURED, because)


def recorded(asked: str, because: str) -> None:
    """Enters something that changes the modelled machine alone into the account."""
    ACCOUNT.add(asked, Treatment.RECORDED, because)


def ignored(asked: str, because: str) -> None:
    """Enters something that can mean nothing here into the account."""
    ACCOUNT.add(asked, Treatment.IGNORED, because)


def compat_report() -> pd.DataFrame:
    """Each thing that the program has asked of PopTorch so far: honoured, recorded for the model, or ignored, and why.

    Example:
        >>> list(compat_report())
        ['asked', 'became', 'because']
    """
    rows = [(asked, treatment.value, because) for asked, treatment, because in ACCOUNT]
    return pd.DataFrame(rows, columns=["asked", "became", "because"])
