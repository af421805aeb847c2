"""The account of a program's requests to PopTorch: honoured, recorded for the modelled machine, or ignored."""

from enum import Enum
from functools import partial

import pandas as pd


class Treatment(Enum):
    """Treatment of a request to PopTorch."""

    HONOURED = "honoured"  # it changes results or time, as with PopTorch
    RECORDED = "recorded"  # it changes the modelled machine, not the results
    IGNORED = "ignored"  # it has no effect here


ACCOUNT: dict[str, tuple[Treatment, str]] = {}
"""Requests of this process's program in the order of first use, each with its treatment and the reason."""


def enter(treatment: Treatment, asked: str, because: str = "") -> None:
    """Add a request and its treatment to the account, if the request is new.

    Example:
        >>> enter(Treatment.IGNORED, "Options.autoRoundNumIPUs", "there are no IPUs to reserve")
        >>> ACCOUNT["Options.autoRoundNumIPUs"][0].value
        'ignored'
    """
    ACCOUNT.setdefault(asked, (treatment, because))


# Each takes the request and the reason for its treatment.
honoured = partial(enter, Treatment.HONOURED)
recorded = partial(enter, Treatment.RECORDED)
ignored = partial(enter, Treatment.IGNORED)


def compat_report() -> pd.DataFrame:
    """Return a table of the program's requests to PopTorch so far: honoured, recorded or ignored, and the reason.

    Example:
        >>> list(compat_report())
        ['asked', 'became', 'because']
    """
    rows = [(asked, treatment.value, because) for asked, (treatment, because) in ACCOUNT.items()]
    return pd.DataFrame(rows, columns=["asked", "became", "because"])
