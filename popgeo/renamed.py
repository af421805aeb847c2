"""Names that have changed: the old ones work for two minor versions and warn."""

import warnings
from importlib import import_module
from typing import Any

# The old name, the new one, and the version in which the old one ends. A test fails when that version has come.
NAMES = {
    "popgeo.loader.LoaderChoices": ("popgeo.loader.EpochChoices", "0.3"),
    "popgeo.nn.Calculator": ("popgeo.deploy.Calculator", "0.3"),
    "popgeo.nn.EmbeddingCut": ("popgeo.nn.Cut", "0.3"),
}


def by_old_name(old: str) -> Any:
    """The object that `old`, a name in `NAMES`, now has another name for, after a FutureWarning."""
    new, end = NAMES[old]
    warnings.warn(f"{old} is now {new}; the old name ends with popgeo {end}.", FutureWarning, stacklevel=3)
    module, _, name = new.rpartition(".")
    return getattr(import_module(module), name)
