"""How far off a force field is: tables of errors, what a validation is judged by, and the picture of parity."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from popgeo.atomic_write import written_whole
from popgeo.engine.compiled_step import CompiledStep
from popgeo.loader import FixedSizeDataLoader
from popgeo.plots import panels, prediction_scatter
from popgeo.train.training_set import UNITS

Pairs = Mapping[str, tuple[Tensor, Tensor]]
"""For each of what is learned the labels and what was predicted, of all real entries."""


def taken_from(batch: object, labels: tuple[str, ...]) -> dict[str, Tensor]:
    """What `ForceLoss` takes of a batch."""
    names = ("z", "pos", "batch", "edge_index", "edge_shift", "cell", "graphs_mask", "weight", *labels)
    return {name: batch[name] for name in names if name in batch}  # type: ignore[index, operator]


def predictions(step: CompiledStep, loader: FixedSizeDataLoader, labels: tuple[str, ...]) -> Pairs:
    """The labels of a loader's structures, and what a compiled `ForceLoss` predicts; energies an atom."""
    kept: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in labels}
    for batch in loader:
        _, found = step(**taken_from(batch, labels))
        atoms = torch.bincount(batch.batch, minlength=batch.num_graphs).clamp(min=1)
        for name in labels:
            real = batch.nodes_mask if name == "forces" else batch.graphs_mask
            label = batch.energy / atoms if name == "energy" else batch[name]
            known = real.view(-1, *[1] * (label.dim() - 1)).expand_as(label) & ~label.isnan()
            kept[name].append((label[known].double().cpu(), found[name][known].double().cpu()))
    return {name: tuple(map(torch.cat, zip(*parts, strict=True))) for name, parts in kept.items()}  # type: ignore[misc]


def errors_of(pairs: Pairs) -> dict[str, float]:
    """Mean absolute and root mean squared errors, in thousandths of `UNITS`; NaN where nothing is known."""
    found: dict[str, float] = {}
    for name, (label, predicted) in pairs.items():
        error = 1000 * (predicted - label)
        unit = f"{name} m{UNITS[name]}"
        found |= {f"{unit} MAE": float(error.abs().mean()), f"{unit} RMSE": float(error.square().mean().sqrt())}
    return found


def table(parts: Mapping[str, Pairs]) -> pd.DataFrame:
    """The errors of each part of the data, one row a part."""
    return pd.DataFrame({name: errors_of(pairs) for name, pairs in parts.items()}).T


def draw_parity(pairs: Pairs, title: str, path: Path) -> None:
    """Writes a picture of what was predicted over the labels."""
    shown = {name: both for name, both in pairs.items() if len(both[0])}
    axes = panels(1, len(shown), size=(4.5 * len(shown), 4.8), title=title)
    for ax, (name, (label, predicted)) in zip(axes, shown.items(), strict=True):
        quantity = "energy less that of elements" if name == "energy" else name
        prediction_scatter(label, predicted, quantity=quantity, unit=UNITS[name], ax=ax)
        error = 1000 * float((predicted - label).abs().mean())
        ax.set_title(f"{name}: MAE {error:.3g} m{UNITS[name]}")
    figure = axes[0].figure
    assert isinstance(figure, Figure)
    with written_whole(path) as partial:
        figure.savefig(partial, format="png", dpi=150)
