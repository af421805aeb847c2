"""Training loss of a force field: errors of energies per atom, forces and stress, each with its weight."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.deploy.force_field import ForceField
from popgeo.nn.forces import energy_and_forces, energy_forces_and_stress
from popgeo.nn.loss import known_labels
from popgeo.ops import global_add_pool


def _huber(error: Tensor) -> Tensor:
    return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=0.01)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"mse": torch.square, "mae": torch.abs, "huber": _huber}
"""Functions from an error to its cost; Huber's cost is quadratic for errors below 0.01, in the units of the labels."""


class ForceLoss(nn.Module):
    """A module that returns the loss of a force field on a batch, and the predictions.

    Args:
        field: Force field.
        weights: Weight of each learned label: `energy`, `forces`, `stress`.
        loss: Key of `LOSSES`. Default: `"mse"`.
    """

    def __init__(self, field: ForceField, weights: Mapping[str, float], loss: str = "mse") -> None:
        super().__init__()
        self.field, self.weights, self.cost = field, dict(weights), LOSSES[loss]

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor,
        edge_index: Tensor,
        edge_shift: Tensor,
        cell: Tensor,
        graphs_mask: Tensor,
        **labels: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the predictions: `energy` in eV per atom [num_graphs], `forces`, `stress` and `costs`.

        `costs` [number of weights, 2] has the sum of each label's costs and the number of its known entries, from which
        the loss of several batches is computed. NaN labels and padding do not count. Next to the learned labels,
        `labels` may contain the `weight` of each structure, and weights of single labels such as `energy_weight`.
        [num_graphs]
        """
        num_graphs = graphs_mask.size(0)
        given: dict[str, Any] = {"edge_shift": edge_shift, "num_graphs": num_graphs, "binding_only": True}
        found: dict[str, Tensor] = {}
        if "stress" in self.weights:
            total, found["forces"], found["stress"] = energy_forces_and_stress(
                self.field, z, pos, batch, edge_index, cell=cell, **given
            )
        elif "forces" in self.weights:
            total, found["forces"] = energy_and_forces(self.field, z, pos, batch, edge_index, **given)
        else:
            total = self.field(z, pos, batch, edge_index, **given)
        atoms = global_add_pool((z > 0).to(pos).unsqueeze(1), batch, num_graphs).flatten().clamp(min=1)
        found["energy"] = total.flatten() / atoms
        masks = {"energy": graphs_mask, "forces": z > 0, "stress": graphs_mask}
        loss, sums = pos.new_zeros(()), []
        for name, factor in self.weights.items():
            label = labels[name] / atoms if name == "energy" else labels[name]
            known = known_labels(label, masks[name])
            costs = self.cost(torch.where(known, found[name] - label, 0.0))
            for own in ("weight", f"{name}_weight"):
                if (counts := labels.get(own)) is not None:
                    of_rows = counts.index_select(0, batch) if name == "forces" else counts
                    costs = costs * of_rows.view(-1, *[1] * (costs.dim() - 1))
            cost, count = torch.where(known, costs, 0.0).sum(), known.sum().to(costs)
            loss = loss + factor * cost / count.clamp(min=1)
            sums.append(torch.stack([cost, count]))
        return loss, {**found, "costs": torch.stack(sums).detach()}
