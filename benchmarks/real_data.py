"""Where benchmarks find real molecules: in the folder that POPGEO_SHARED_DATA names; random ones are in elsewhere."""

import os
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parent / "data"  # measurements of others, part of this repository


def shared(name: str) -> Path | None:
    """A file of the folder that POPGEO_SHARED_DATA names; None if there is none, which is said on the first line."""
    folder = os.environ.get("POPGEO_SHARED_DATA")
    path = None if folder is None else Path(folder) / name
    return path if path is not None and path.exists() else None


def say_random(name: str, instead: str) -> None:
    """The first line of a benchmark that runs on made-up data."""
    print(f"RANDOM DATA: {instead}, since POPGEO_SHARED_DATA names no folder that holds {name}.")
