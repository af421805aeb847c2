"""A molecule as balls and sticks in three dimensions, drawn without an interactive viewer."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from numpy.typing import ArrayLike, NDArray

from popgeo.plots.style import drawing, lighter

# Symbol, colour, and radius of the ball in angstrom. The letters identify elements with similar colours.
ELEMENTS = {
    1: ("H", "#f4f4f4", 0.27),
    6: ("C", "#7a7a7a", 0.40),
    7: ("N", "#6699dd", 0.39),
    8: ("O", "#ee7766", 0.38),
    9: ("F", "#99cc77", 0.36),
    16: ("S", "#e8c25a", 0.48),
    17: ("Cl", "#66aa88", 0.46),
}
OTHER = ("", "#bb99cc", 0.42)
Floats = NDArray[np.float64]
STICK = "0.35"  # grey of the bond nearest to the viewer
FOG = 0.45  # share of white in the colour of the farthest atom
TILT, TURN = np.deg2rad(24), np.deg2rad(16)  # angles from the broad side, so that flat molecules show their depth
# Distances of a bond's lines from its axis in angstrom: single, double, triple, aromatic.
LINES_OF_BOND = ((0.0,), (-0.08, 0.08), (-0.13, 0.0, 0.13), (-0.08, 0.08))
AROMATIC = 3


def molecule(
    z: ArrayLike,
    pos: ArrayLike,
    edge_index: ArrayLike | None = None,
    edge_attr: ArrayLike | None = None,
    *,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a molecule in three dimensions with its broad side to the front; farther atoms are paler.

    Args:
        z: Atomic numbers. Atoms of number 0 are padding and are left out. [num_atoms]
        pos: Positions in angstrom. [num_atoms, 3]
        edge_index: Bonds or other edges, in one direction or both, drawn as sticks. [2, num_edges]
        edge_attr: One-hot kind of each bond: single, double, triple, aromatic. Default: edges are thin lines.
            [num_edges, 4]
        title: Title of the figure.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: the shape of `pos` does not match `z`, or no atom is real.

    Example:
        >>> ax = molecule([8, 1, 1], [[0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]], title="water")
        >>> sorted(text.get_text() for text in ax.texts)
        ['1 Å', 'H', 'H', 'O']
    """
    number, position = np.asarray(z, dtype=int), np.asarray(pos, dtype=float)
    if position.shape != (len(number), 3) or not (number > 0).any():
        raise ValueError(f"z has shape {number.shape}, pos {position.shape}; pass [n] and [n, 3] with a real atom.")
    position = _towards_the_eye(position, number > 0)
    real = position[number > 0]
    depth = np.clip((position[:, 2] - real[:, 2].min()) / max(np.ptp(real[:, 2]), 1e-9), 0, 1)  # 1 is nearest
    with drawing(ax, size=(5.0, 4.2)) as ax:
        if edge_index is not None:
            _draw_bonds(ax, position, depth, np.asarray(edge_index, dtype=int), edge_attr)
        for kind, (x, y, _), near in zip(number, position, depth, strict=True):
            if kind > 0:
                symbol, color, radius = ELEMENTS.get(int(kind), OTHER)
                _draw_ball(ax, (x, y), radius, lighter(color, FOG * (1 - near)), 2 + near, symbol)
        left, bottom = real[:, 0].min() - 0.6, real[:, 1].min() - 0.9
        ax.plot([left, left + 1], [bottom, bottom], color="black", linewidth=2, solid_capstyle="butt")
        ax.text(left + 0.5, bottom + 0.08, "1 Å", ha="center", va="bottom", fontsize="small")
        ax.set(aspect="equal", title=title)
        ax.set_xlim(left - 0.1, real[:, 0].max() + 0.6)
        ax.set_ylim(bottom - 0.2, real[:, 1].max() + 0.6)
        ax.set_axis_off()
    return ax


def _towards_the_eye(position: Floats, real: NDArray[np.bool_]) -> Floats:
    """Rotate positions so that x is the longest extent of the real atoms and z points at the viewer."""
    centred = position - position[real].mean(0)
    axes = np.linalg.svd(centred[real], full_matrices=True)[2]
    axes *= np.sign(axes[np.arange(3), np.abs(axes).argmax(1)])[:, None]  # equal signs on every machine
    axes[2] = np.cross(axes[0], axes[1])  # a rotation, not a reflection
    (c, s), (d, t) = (np.cos(TILT), np.sin(TILT)), (np.cos(TURN), np.sin(TURN))
    tilt, turn = np.array([[1, 0, 0], [0, c, -s], [0, s, c]]), np.array([[d, 0, t], [0, 1, 0], [-t, 0, d]])
    return centred @ axes.T @ turn.T @ tilt.T


def _draw_ball(ax: Axes, at: tuple[float, float], radius: float, color: Floats, zorder: float, symbol: str) -> None:
    """Draw a shaded ball with the letter of its element."""
    ax.add_patch(Circle(at, radius, facecolor=0.72 * color, edgecolor="0.25", linewidth=0.7, zorder=zorder))
    for step in (0.86, 0.68, 0.48, 0.28):
        light = lighter(color, 0.45 * (1 - step))
        off = 0.32 * radius * (1 - step)
        ax.add_patch(Circle((at[0] - off, at[1] + off), step * radius, facecolor=light, linewidth=0, zorder=zorder))
    ax.text(*at, symbol, ha="center", va="center", fontsize="x-small", zorder=zorder, color="0.1")


def _draw_bonds(
    ax: Axes, position: Floats, depth: Floats, edges: NDArray[np.int64], edge_attr: ArrayLike | None
) -> None:
    """Draw bonds as sticks of one, two or three lines; the second line of an aromatic bond is dashed."""
    kinds, width = (None, 0.8) if edge_attr is None else (np.asarray(edge_attr, dtype=float), 2.2)
    pairs = {(min(i, j), max(i, j)): at for at, (i, j) in enumerate(edges.T.tolist()) if i != j}  # loops are padding
    for (i, j), at in pairs.items():
        kind = 0 if kinds is None else int(kinds[at].argmax())
        near = depth[[i, j]].mean()
        color = lighter(STICK, FOG * (1 - near))
        along = position[j, :2] - position[i, :2]
        across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9)
        for line, off in enumerate(LINES_OF_BOND[kind]):
            ends = position[[i, j], :2] + off * across
            dashes = (0, (1.5, 1.0)) if kind == AROMATIC and line else "-"
            ax.plot(*ends.T, color=color, linewidth=width, linestyle=dashes, solid_capstyle="round", zorder=1 + near)
