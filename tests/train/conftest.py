"""Pictures of runs: each kind is drawn once in a process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from popgeo.plots import style

PICTURES: dict[tuple[Any, ...], bytes] = {}  # by kind


def kind_of(axes: Axes) -> tuple[Any, ...]:
    """Labels, scales and number of parts of each axes, and whether what they show is finite and has a width."""
    kind: list[Any] = []
    for one in axes.figure.axes:
        points = one.dataLim.get_points()
        kind += [one.get_xlabel(), one.get_ylabel(), one.get_xscale(), one.get_yscale(), len(one.get_children())]
        kind += [bool(np.isfinite(points).all()), *(points[0] < points[1]).tolist()]
    return tuple(kind)


def write_once_drawn(axes: Axes, path: Path) -> None:
    """Write a picture of this kind; draw it only if it is the first one."""
    kind = kind_of(axes)
    if kind not in PICTURES:
        style.write_png(axes, path)
        PICTURES[kind] = path.read_bytes()
    path.write_bytes(PICTURES[kind])


@pytest.fixture(autouse=True)
def _each_kind_of_picture_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes as long as training: 0.5 s for two pictures of a run, most of which look alike."""
    for module in ("compare_command", "train.evaluate"):
        monkeypatch.setattr(f"popgeo.{module}.write_png", write_once_drawn)
