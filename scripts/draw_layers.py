"""Draw docs/pictures/layers.svg: the folders of popgeo, each above the folders that it imports from.

    python scripts/draw_layers.py

The picture is made from the import statements, so that it cannot become outdated; a test compares it with the code.
"""

import ast
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE, PICTURE = REPOSITORY / "popgeo", REPOSITORY / "docs" / "pictures" / "layers.svg"
ABOUT = {
    "compat": "old programs",
    "extensions": "PyG's extensions",
    "testing": "checks of models",
    "train": "popgeo train",
    "potentials": "models of others",
    "deploy": "a trained model in use",
    "loader": "epochs of batches",
    "convert": "files become stores",
    "ipu": "the simulated machine",
    "data": "one batch of fixed shape",
    "nn": "layers and models",
    "engine": "runs a captured step",
    "capture": "a step becomes a graph",
    "packing": "which graphs share a batch",
    "sampling": "parts of a large graph",
    "ops": "functions of tensors",
    "native": "compiled kernels",
    "plots": "figures",
    "datasets": "bundled molecules",
}
WIDTH, HEIGHT, GAP, STEP, MARGIN = 176, 46, 16, 96, 20


def arrows() -> dict[str, set[str]]:
    """Return for each folder of the package the folders that its files import from, anywhere in the code."""
    found: dict[str, set[str]] = {folder: set() for folder in ABOUT}
    for folder in ABOUT:
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                modules = []
                if isinstance(node, ast.ImportFrom) and node.module:
                    modules = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
                elif isinstance(node, ast.Import):
                    modules = [one.name for one in node.names]
                found[folder] |= {module.split(".")[1] for module in modules if module.startswith("popgeo.")}
    return {folder: (others & {*ABOUT}) - {folder} for folder, others in found.items()}


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return the floor of each folder: one above the highest folder that it imports from."""
    height: dict[str, int] = {}
    while len(height) < len(graph):
        ready = [folder for folder in graph if folder not in height and graph[folder] <= {*height}]
        if not ready:
            raise ValueError(f"folders import each other in a circle: {sorted({*graph} - {*height})}")
        height |= {folder: max((height[other] + 1 for other in graph[folder]), default=0) for folder in ready}
    return height


def draw() -> str:
    """Return the picture as SVG, without arrows that a longer way of arrows implies."""
    graph = arrows()
    height = floors(graph)
    rows = [[folder for folder in ABOUT if height[folder] == floor] for floor in range(max(height.values()), -1, -1)]
    widest = max(map(len, rows)) * (WIDTH + GAP) - GAP
    place: dict[str, tuple[float, int]] = {}
    for down, row in enumerate(rows):
        left = MARGIN + (widest - len(row) * (WIDTH + GAP) + GAP) / 2
        place |= {folder: (left + i * (WIDTH + GAP), MARGIN + down * STEP) for i, folder in enumerate(row)}
    reached: dict[str, set[str]] = {}
    for folder in sorted(graph, key=height.__getitem__):
        reached[folder] = graph[folder].union(*(reached[other] for other in graph[folder]))
    size = (widest + 2 * MARGIN, len(rows) * STEP - STEP + HEIGHT + 2 * MARGIN)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif">']
    for folder, others in graph.items():
        x, y = place[folder]
        for other in sorted(others - set().union(*(reached[one] for one in others))):
            to_x, to_y = place[other]
            parts.append(
                f'<path d="M{x + WIDTH / 2:g} {y + HEIGHT} C{x + WIDTH / 2:g} {y + STEP * 0.8:g} '
                f'{to_x + WIDTH / 2:g} {to_y - STEP * 0.35:g} {to_x + WIDTH / 2:g} {to_y}" fill="none" stroke="#999"/>'
            )
    for folder, (x, y) in place.items():
        middle = f'{x + WIDTH / 2:g}" text-anchor="middle'
        parts += [
            f'<rect x="{x:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#e3f1fa" stroke="#0173b2"/>',
            f'<text x="{middle}" y="{y + 19}" font-size="14" font-weight="bold" fill="#222">{folder}/</text>',
            f'<text x="{middle}" y="{y + 36}" font-size="12" fill="#444">{escape(ABOUT[folder])}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw())
