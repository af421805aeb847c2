"""Draw docs/pictures/pipeline.svg: the timeline of a pipeline from `plan.plot()`.

    python scripts/draw_pipeline.py

Run it again after the cost of a plan or the drawing of its timeline changes.
"""

import io
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor, nn

from popgeo import ipu

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "pipeline.svg"


class Layers(nn.Module):
    """Equal layers and a loss."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def draw() -> str:
    """Return the picture as SVG."""
    with torch.device("meta"):
        model = Layers(2048, 8)
    options = ipu.Options(gradient_accumulation=64)
    x = torch.empty(512, 2048, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = ipu.pipeline(model, [x], options, optimizer, stages=4, overlap_host=True)
    content = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pipeline"}):
        figure = plan.plot().get_figure(root=True)
        assert figure is not None
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue().decode()


def main() -> None:
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.name)


if __name__ == "__main__":
    main()
