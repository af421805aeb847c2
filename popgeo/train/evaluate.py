"""Errors of a force field: tables, the loss over a part of the data, and the parity plot."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor

from popgeo.atomic_write import written_whole
from popgeo.convert.atom_keys import WEIGHTS
from popgeo.convert.set_checks import weight_of
from popgeo.engine.compiled_step import CompiledStep
from popgeo.loader import FixedSizeDataLoader
from popgeo.ops import global_add_pool
from popgeo.plots import panels, prediction_scatter
from popgeo.plots.style import write_png
from popgeo.plots.training import in_angstrom
from popgeo.train.training_set import UNITS


class LabelPair(NamedTuple):
    """Known labels, their predictions, and the weight of each."""

    label: Tensor
    predicted: Tensor
    weight: Tensor


Pairs = Mapping[str, LabelPair]
"""The real entries of each label that is learned; energies are per atom."""


def taken_from(batch: object, labels: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the attributes of a batch that `ForceLoss` takes as arguments."""
    names = ("z", "pos", "batch", "edge_index", "edge_shift", "cell", "graphs_mask", *WEIGHTS, *labels)
    return {name: batch[name] for name in names if name in batch}  # type: ignore[index, operator]


def loss_of(costs: Tensor, factors: Mapping[str, float]) -> float:
    """Return the loss of several batches together, from the sum of their `costs` [number of labels, 2]."""
    weighted = zip(factors.values(), costs.tolist(), strict=True)
    return sum(factor * cost / max(count, 1.0) for factor, (cost, count) in weighted)


def predictions(step: CompiledStep, loader: FixedSizeDataLoader, labels: tuple[str, ...]) -> tuple[Pairs, Tensor]:
    """Return labels and predictions of a compiled `ForceLoss` for a loader's structures, and the sum of its `costs`."""
    kept: dict[str, list[Tensor]] = {name: [] for name in labels}
    costs: list[Tensor] = []
    for batch in loader:  # nothing is read before the end, since each read waits for a GPU
        _, found = step(**taken_from(batch, labels))
        costs.append(found["costs"].double())
        atoms = global_add_pool((batch.z > 0).long().unsqueeze(1), batch.batch, batch.num_graphs).flatten()
        for name in labels:
            real = batch.nodes_mask if name == "forces" else batch.graphs_mask
            label = batch.energy / atoms.clamp(min=1) if name == "energy" else batch[name]
            weight = label.new_ones(batch.num_graphs) * weight_of(batch, name).to(label.dtype)  # also of one number
            weight = weight.index_select(0, batch.batch) if name == "forces" else weight
            shape = (-1, *[1] * (label.dim() - 1))
            known = real.view(shape).expand_as(label) & ~label.isnan()
            parts = (label, found[name], weight.view(shape).expand_as(label), known)
            kept[name].append(torch.stack([part.double().flatten() for part in parts]))
    pairs = {}
    for name, of_batches in kept.items():
        *rows, known = torch.cat(of_batches, 1).cpu()
        pairs[name] = LabelPair(*(row[known.bool()] for row in rows))
    return pairs, sum(costs[1:], costs[0]).cpu()


def errors_of(pairs: Pairs) -> dict[str, float]:
    """Return mean absolute and root mean squared errors in thousandths of `UNITS`; NaN without a known label."""
    found: dict[str, float] = {}
    for name, (label, predicted, weight) in pairs.items():
        error, total = 1000 * (predicted - label), weight.sum()
        unit = f"{name} m{UNITS[name]}"
        squared = (weight * error.square()).sum() / total
        found |= {f"{unit} MAE": float((weight * error.abs()).sum() / total), f"{unit} RMSE": float(squared.sqrt())}
    return found


def table(parts: Mapping[str, Pairs]) -> pd.DataFrame:
    """Return a table of errors with one row per part of the data."""
    return pd.DataFrame({name: errors_of(pairs) for name, pairs in parts.items()}).T


def doubts(pairs: Pairs) -> list[str]:
    """Return a warning for each learned label with predictions that are no better than 0."""
    found = []
    for name, (label, predicted, weight) in pairs.items():
        error, size = ((weight * part.square()).sum() for part in (predicted - label, label))
        if len(label) and float(error) > 0.9 * float(size):  # also if all labels are 0
            found.append(
                f"{name}: predicting 0 would be {'better' if error > size else 'as good'}. Train longer, or check the "
                "data: wrong units, gradients instead of forces, labels that contradict each other?"
            )
    return found


def draw_parity(pairs: Pairs, title: str, path: Path) -> None:
    """Write a plot of the predictions over the labels."""
    shown = {name: pair for name, pair in pairs.items() if len(pair.label)}
    if not shown:
        return
    axes, errors = panels(1, len(shown), size=(4.5 * len(shown), 4.8), title=title), errors_of(shown)
    for ax, (name, (label, predicted, _)) in zip(axes, shown.items(), strict=True):
        quantity = "energy of binding" if name == "energy" else name
        unit = in_angstrom(UNITS[name])
        prediction_scatter(label, predicted, quantity=quantity, unit=unit, ax=ax)
        ax.set_title(f"{name}: MAE {errors[f'{name} m{UNITS[name]} MAE']:.3g} m{unit}")
    draw(axes[0], path)


def draw(axes: Axes, path: Path) -> None:
    """Write the figure of the axes as a PNG file, as a whole."""
    with written_whole(path) as partial:
        write_png(axes, partial)
