"""The account of what an old program asked for: honoured, recorded for the machine model, or without meaning here."""

from enum import Enum
from functools import partial

import pandas as pd


class Treatment(Enum):
    """What became of something that a program asked of PopTorch."""

    HONOURED = "honoured"  # it changes results or time here as it did there
    RECORDED = "recorded"  # it changes the modelled machine, not the results
    IGNORED = "ignored"  # it can mean nothing here


ACCOUNT: dict[str, tuple[Treatment, str]] = {}
"""What the program in this process asked for, each thing once, in the order of first use, with what became of it."""


def enter(treatment: Treatment, asked: str, because: str = "") -> None:
    """Enters something that a program asked for into the account.

    Example:
        >>> enter(Treatment.IGNORED, "Options.autoRoundNumIPUs", "there are no IPUs to reserve")
        >>> ACCOUNT["Options.autoRoundNumIPUs"][0].value
        'ignored'
    """
    ACCOUNT.setdefault(asked, (treatment, because))


# Each takes what was asked for, and why it becomes that.
honoured = partial(enter, Treatment.HONOURED)
recorded = partial(enter, Treatment.RECORDED)
ignored = partial(enter, Treatment.IGNORED)


def compat_report() -> pd.DataFrame:
    """Each thing that the program has asked of PopTorch so far: honoured, recorded for the model, or ignored, and why.

    Example:
        >>> list(compat_report())
        ['asked', 'became', 'because']
    """
    rows = [(asked, treatment.value, because) for asked, (treatment, because) in ACCOUNT.items()]
    return pd.DataFrame(rows, columns=["asked", "became", "because"])
