"""Draws docs/pictures/residuals.svg: modelled over measured cycles by family and size, on the held-out points.

    python benchmarks/residuals.py

Run it again after the modelled cycles of the microbenchmarks change.
"""

from pathlib import Path

import cost_model_validation as validation
import numpy as np
import published
import torch
from published import Point

from popgeo.command_line import run

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "residuals.svg"
NAMES = {"gather": "gather", "scatter_add": "scatter-add", "matmul": "dense product", "schnet_block": "SchNet block"}
# Limits of the number of elements of the largest tensor.
CLASSES = {"up to 65,536": 2**16, "up to 1,048,576": 2**20, "more": float("inf")}
LOW, HIGH = 0.7, 1.3
LEFT, WIDTH, ROW, TOP = 260, 380, 22, 34
STYLE = (
    "text{font:12px sans-serif;fill:#5b6775}text.family{fill:#1d2733;font-weight:bold}"
    "line{stroke:#dde3ea}line.one{stroke:#5b6775}rect{fill:#9db8d9}circle{fill:#1f5fa8}"
)


def largest(point: Point) -> int:
    """Return the number of elements of a point's largest tensor."""
    first, second, third = point.sizes
    if point.family == "matmul":
        return max(first * second, second * third, first * third)
    return second * max(first, third)


def by_class(family: str) -> dict[str, np.ndarray]:
    """Return modelled over measured cycles of a family's held-out points, by size; only sizes with points."""
    _, points = published.split(family, published.points(published.FOLDER, family))
    ratios = validation.modelled(points) / np.array([point.cycles for point in points])
    places = np.searchsorted([*CLASSES.values()], [largest(point) for point in points])
    return {name: ratios[places == place] for place, name in enumerate(CLASSES) if (places == place).any()}


def draw() -> str:
    """Return the picture as SVG."""
    parts, y = list[str](), TOP
    for family, name in NAMES.items():
        for number, (size, ratios) in enumerate(by_class(family).items()):
            low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
            label = f'<text class="family" x="8" y="{y + 15}">{name}</text>' if number == 0 else ""
            parts.append(
                f'{label}<text x="112" y="{y + 15}">{size}</text>'
                f'<rect x="{_x(low):.1f}" y="{y + 5}" width="{_x(high) - _x(low):.1f}" height="12"/>'
                f'<circle cx="{_x(middle):.1f}" cy="{y + 11}" r="4"/>'
                f'<text x="{LEFT + WIDTH + 12}" y="{y + 15}">{len(ratios)} points</text>'
            )
            y += ROW
        y += 8
    ticks = "".join(
        f'<line class="{"one" if tick == 1 else ""}" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{TOP}" y2="{y}"/>'
        f'<text x="{_x(tick):.1f}" y="{TOP - 8}" text-anchor="middle">{tick:.1f}</text>'
        for tick in np.linspace(LOW, HIGH, 7).round(1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {y + 8}" '
        f'style="background:#ffffff"><style>{STYLE}</style>{ticks}{"".join(parts)}</svg>\n'
    )


def _x(ratio: float) -> float:
    return LEFT + WIDTH * (min(max(ratio, LOW), HIGH) - LOW) / (HIGH - LOW)


def main() -> None:
    torch.set_num_threads(1)
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.name)


if __name__ == "__main__":
    run(main)
