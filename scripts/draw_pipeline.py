"""Draws docs/pictures/pipeline.svg: the timeline of a pipeline, as its page has it.

    python scripts/draw_pipeline.py

To be run again when what a plan costs, or how its timeline is drawn, has changed.
"""

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from popgeo import ipu
from popgeo.ipu.report.html_page import PARTS
from popgeo.ipu.report.timeline_picture import timeline_picture

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "pipeline.svg"


class Layers(nn.Module):
    """Alike layers and a loss."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def draw() -> str:
    """The picture as SVG that needs no style sheet."""
    with torch.device("meta"):
        model = Layers(2048, 8)
    options = ipu.Options(gradient_accumulation=64)
    x = torch.empty(512, 2048, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = ipu.pipeline(model, [x], options, optimizer, stages=4, overlap_host=True)
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    light = style[: style.index("@media")]
    colors = dict(re.findall(r"--(\w+): (#\w+);", light))
    picture = re.sub(r"var\(--(\w+)\)", lambda found: colors[found[1]], timeline_picture(plan))
    rules = (
        "text{font:11px sans-serif;fill:#5b6775}text.on{fill:#fff;font-size:10px;text-anchor:middle}"
        "text.gap{font-size:22px;text-anchor:middle}line{stroke:#dde3ea}"
    )
    start = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#ffffff"'
    return picture.replace("<svg", start, 1).replace(">", f"><style>{rules}</style>", 1) + "\n"


def main() -> None:
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.name)


if __name__ == "__main__":
    main()
