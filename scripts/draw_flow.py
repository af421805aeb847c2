"""Draw docs/pictures/flow.svg: batches with fixed sizes, padding and packing, and their way through popgeo.

    python scripts/draw_flow.py

The bars are the loaders' batches of the bundled molecules. flow_phone.svg has only the bars, one panel below the other,
for narrow screens. The pictures are written as text, so that the same molecules give the same files.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.loader import DataLoader

from popgeo import FixedSizeDataLoader, FixedSizeOptions, Molecules
from popgeo.loader.source import FlatSource

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
NUM_MOLECULES = 2000
BATCH_SIZE = 12
NUM_BARS = 9
WIDTH, MARGIN = 960, 20
PHONE_WIDTH, PHONE_MARGIN, PHONE_BARS = 400, 8, 5
BAR_HEIGHT, BAR_STEP = 12, 16
LIGHT, DARK = "#56b4e9", "#0173b2"  # from a palette for colour-blind readers
EDGE, PADDING, TEXT, QUIET = "#de8f05", "#d9d9d9", "#222222", "#666666"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Batches of one loader: the nodes of each real graph by batch, and the slots of a batch of fixed size."""

    title: str
    note: str
    batches: Sequence[Sequence[int]]
    slots: int | None


def panels() -> list[Panel]:
    """Return panels of the same molecules in PyG's batches, padded to the largest, and packed."""
    molecules = Molecules()[:NUM_MOLECULES]
    torch.manual_seed(0)
    ordinary = list(DataLoader(molecules, BATCH_SIZE, shuffle=True))
    padded = FixedSizeDataLoader(molecules, BATCH_SIZE + 1, shuffle=True, seed=0)
    tuned = FixedSizeOptions.tune(molecules, target_graphs=BATCH_SIZE, verbose=False)
    packed = FixedSizeDataLoader(
        molecules, shuffle=True, seed=0, fixed_size_options=tuned, fixed_size_strategy="Window"
    )
    shapes = len({(batch.num_nodes, batch.num_edges) for batch in ordinary})
    return [
        Panel(
            title="PyG: DataLoader",
            note=f"{shapes} shapes in {len(ordinary)} batches",
            batches=[batch.ptr.diff().tolist() for batch in ordinary[:NUM_BARS]],
            slots=None,
        ),
        *(
            Panel(
                title=title,
                note=f"1 shape, {loader.filling().full['nodes']:.1%} full",
                batches=[sizes_of(loader, i) for i in range(NUM_BARS)],
                slots=loader.fixed_size_options.total_num_nodes,
            )
            for title, loader in (("FixedSizeDataLoader: PadToMax", padded), ("FixedSizeDataLoader: Window", packed))
        ),
    ]


def sizes_of(loader: FixedSizeDataLoader, index: int) -> list[int]:
    """Return the nodes of each real graph of a batch."""
    source = loader.source
    assert isinstance(source, FlatSource)  # the dataset is in memory
    return np.asarray(source.store.sizes)[loader.plan()[index], 0].tolist()


def rectangle(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    """Return a rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'


def text(x: float, y: float, words: str, size: float = 13, fill: str = TEXT, more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}"{more}>{words}</text>'


def draw_panel(panel: Panel, x: float, y: float, scale: float, num_bars: int = NUM_BARS) -> Iterator[str]:
    """Yield the bars of a panel, one per batch, with a segment per graph and grey padding."""
    yield text(x, y, panel.title, more=' font-weight="bold"')
    yield text(x, y + 17, panel.note, 12, QUIET)
    for row, sizes in enumerate(panel.batches[:num_bars]):
        top, left = y + 28 + row * BAR_STEP, x
        if panel.slots is not None:
            yield rectangle(x, top, panel.slots * scale, BAR_HEIGHT, PADDING)
        for i, size in enumerate(sizes):
            yield rectangle(left, top, size * scale, BAR_HEIGHT, DARK if i % 2 else LIGHT)
            left += size * scale


def draw_flow(y: float) -> Iterator[str]:
    """Yield the boxes and arrows from a dataset to new weights."""
    steps = (
        ("PyG dataset", "graphs of any size"),
        ("packs", "which share a batch"),
        ("fixed-size batches", "with masks"),
        ("model", "SchNet, GCN, GIN, yours"),
        ("one compiled step", "forward, backward, update"),
        ("results, report", "equal to eager PyTorch"),
    )
    gap = 18
    width = (WIDTH - 2 * MARGIN - gap * (len(steps) - 1)) / len(steps)
    for i, (name, note) in enumerate(steps):
        x = MARGIN + i * (width + gap)
        yield rectangle(x, y, width, 46, "#ffffff", f' stroke="{DARK}" stroke-width="1.5" rx="5"')
        yield text(x + width / 2, y + 20, name, 12, TEXT, ' text-anchor="middle" font-weight="bold"')
        yield text(x + width / 2, y + 36, note, 9.5, QUIET, ' text-anchor="middle"')
        if i:
            arrow = f"M{x - gap + 3:.1f} {y + 23} h{gap - 7} m-5 -4 l5 4 l-5 4"
            yield f'<path d="{arrow}" fill="none" stroke="{EDGE}" stroke-width="2"/>'


def draw() -> dict[str, str]:
    """Return each picture as SVG, by file name."""
    found = panels()
    longest = [panel.slots or max(map(sum, panel.batches)) for panel in found]
    return {"flow.svg": draw_wide(found, longest), "flow_phone.svg": draw_for_phone(found, longest)}


def draw_wide(found: Sequence[Panel], longest: Sequence[int]) -> str:
    """Return the boxes and arrows, with the panels side by side below them."""
    gap = 36
    scale = (WIDTH - 2 * MARGIN - gap * (len(found) - 1)) / sum(longest)
    parts, x = list(draw_flow(16)), float(MARGIN)
    for panel, length in zip(found, longest, strict=True):
        parts += draw_panel(panel, x, 96, scale)
        x += length * scale + gap
    return as_svg(parts, WIDTH, 96 + 28 + NUM_BARS * BAR_STEP + 28, MARGIN)


def draw_for_phone(found: Sequence[Panel], longest: Sequence[int]) -> str:
    """Return the panels one below the other, each with a few bars."""
    scale = (PHONE_WIDTH - 2 * PHONE_MARGIN) / max(longest)
    step = 28 + PHONE_BARS * BAR_STEP + 24
    parts = [
        part
        for i, panel in enumerate(found)
        for part in draw_panel(panel, PHONE_MARGIN, 20 + i * step, scale, PHONE_BARS)
    ]
    return as_svg(parts, PHONE_WIDTH, 20 + len(found) * step + 8, PHONE_MARGIN)


def as_svg(parts: Iterable[str], width: int, height: int, margin: int) -> str:
    """Return the picture of the shapes, with a caption at its lower edge."""
    caption = text(margin, height - 10, "A bar is a batch, a segment a molecule, grey is padding.", 11, QUIET)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img">'
    )
    words = "Batches of molecules: ordinary ones vary in size, padded and packed ones do not; packed ones are full."
    title = f"<title>{words}</title>"
    return "\n".join([head, title, rectangle(0, 0, width, height, "#ffffff"), *parts, caption, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder for the pictures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in draw().items():
        (out / name).write_text(picture)
        print(f"wrote {out / name}")


if __name__ == "__main__":
    main()
