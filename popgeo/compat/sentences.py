"""Long sentences of errors, PopTorch's and ours: `sentences.csv` lists them by the function that says them."""

import csv
from pathlib import Path
from typing import Any

with Path(__file__).with_name("sentences.csv").open(newline="") as _file:
    _SENTENCES = {row["of"]: row["sentence"] for row in csv.DictReader(_file)}


def said(of: str, /, **values: Any) -> str:
    """A sentence with its values.

    Args:
        of: The function that says it, or its class, and a number after the first one.
        values: By their names in the sentence.

    Example:
        >>> said("getAnchoredTensor", short_name="grad")
        "Tensor 'grad' is not known, since PopART's names are not; return it from the model instead."
    """
    return _SENTENCES[of].format(**values)
