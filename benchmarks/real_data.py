"""The place of real data: the folder named by POPGEO_SHARED_DATA. Without it, benchmarks use random data."""

import os
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parent / "data"  # published measurements, part of this repository


def shared(name: str) -> Path | None:
    """Return the path of a file in the folder named by POPGEO_SHARED_DATA; None if it does not exist."""
    folder = os.environ.get("POPGEO_SHARED_DATA")
    path = None if folder is None else Path(folder) / name
    return path if path is not None and path.exists() else None


def say_random(name: str, instead: str) -> None:
    """Print the first line of a benchmark that runs on random data."""
    print(f"RANDOM DATA: {instead}, since POPGEO_SHARED_DATA names no folder that holds {name}.")
