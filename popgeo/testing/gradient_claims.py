"""Claims about gradients: none is lost, and padding changes none, not even of second order."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.compare_runs import ModelRun
from popgeo.testing.differences import difference, loss_of, noise_of
from popgeo.testing.model_subject import MORE, ModelSubject

STEP = 1e-6  # step of finite differences in float64
NEAR = 1e-3  # largest relative difference between a slope and finite differences


@claim("gradients", SubjectKind.MODEL)
def gradients(subject: ModelSubject, case: Case) -> dict[str, float]:
    """Check that the gradient of every weight is the slope of the loss.

    Tried: the slope of the loss along random directions of all weights is compared to differences of the loss, in
    float64, in training, and without dropout.

    Cause: a part of the model loses its gradient, by .detach(), .data, .item(), torch.no_grad or a new tensor; or a
    custom function has a wrong backward pass.
    """
    model = _with_moved_weights(subject.modes[0])
    names = [n for n, p in model.named_parameters() if p.requires_grad] if isinstance(model, nn.Module) else []
    seen = subject.see(case.graphs, model=model, wide=True)
    if not names or not seen.run.parameters:
        raise NotTriedError("no parameter is trained, or the model is in evaluation")
    trained = [name for name, tensor in seen.run.tensors.items() if tensor.requires_grad]
    if not trained:
        raise BrokenError("no result has a gradient, but parameters of the model require one")

    def loss_of_run(seen: ModelRun) -> Tensor:
        if subject.loss is not None:
            return subject.loss(seen.run.result, seen.batch.batch)
        return loss_of(seen.run.tensors[name] for name in trained)

    def slope(along: dict[str, Tensor]) -> float:
        sides = []
        for sign in (STEP, -STEP):
            moved = copy.deepcopy(model).double()
            with torch.no_grad():
                for name, direction in along.items():
                    moved.get_parameter(name).add_(direction, alpha=sign)
            sides.append(float(loss_of_run(subject.see(case.graphs, model=moved, wide=True)).detach()))
        return (sides[0] - sides[1]) / (2 * STEP)

    slopes = seen.run.gradients(loss_of_run(seen))
    generator = torch.Generator().manual_seed(0)
    ways = {name: torch.randn(slopes[name].shape, generator=generator, dtype=torch.float64) for name in names}
    worst = 0.0
    for part in [names] + [[name] for name in names]:
        along = {name: ways[name] for name in part}
        expected, found = slope(along), sum(float((slopes[name] * ways[name]).sum()) for name in part)
        scale = max(abs(expected), noise_of(slopes), 1e-6)
        apart = abs(found - expected) / scale
        if part is names and apart <= NEAR:
            return {"largest relative difference": apart}
        worst = max(worst, apart)
        if len(part) == 1 and not apart <= NEAR:
            raise BrokenError(
                f"the gradient of {part[0]} along a random direction is {found:.6g}, but {expected:.6g} by finite "
                "differences",
                found=found,
                expected=expected,
            )
    raise BrokenError(f"the gradient of all weights and finite differences differ by {worst:.2g} of its size")


def _with_moved_weights(model: Any) -> Any:
    """Return a copy with slightly changed weights, because zero weights may put ReLU at its kink."""
    if not isinstance(model, nn.Module):
        return model
    moved, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in moved.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator).to(weight), alpha=0.01)
    return moved


@claim("second derivatives", SubjectKind.MODEL)
def second_derivatives(subject: ModelSubject, case: Case) -> None:
    """Check that padding changes no gradient of an input and no second derivative, and that all are finite.

    Tried: with the least and with more padding, the gradient of the loss with respect to the floating point inputs of
    real nodes and edges, and the gradient of its square with respect to the weights, as in training on forces.

    Cause: padding edges have length 0, where a root or a norm has no derivative, or no second derivative, which
    training on forces needs. Replace their vectors first, torch.where(batch.edges_mask.unsqueeze(1), vec, 1.0).
    """
    least, more = (_slopes(subject, case, padding) for padding in (0, MORE))
    for name, expected in least.items():
        apart = difference(more[name], expected, subject.tolerance, scale=noise_of(least))
        if apart is not None or not expected.isfinite().all():
            found = "not finite" if apart is None else f"{apart.found:.6g} with more padding, but {apart.expected:.6g}"
            raise BrokenError(f"{name} is {found} with the least padding")


def _slopes(subject: ModelSubject, case: Case, padding: int) -> dict[str, Tensor]:
    """Return first derivatives with respect to inputs, and second derivatives with respect to weights, by name."""
    leaves: dict[str, Tensor] = {}

    def watch(batch: Batch) -> Batch:
        for name, value in batch.to_dict().items():
            level = "node" if batch.is_node_attr(name) else "edge" if batch.is_edge_attr(name) else ""
            if isinstance(value, Tensor) and value.is_floating_point() and level and name != "y":
                leaves[f"{level} {name}"] = batch[name] = value.detach().clone().requires_grad_()
        return batch

    model = subject.modes[0]
    seen, kinds = subject.see(case.graphs, model=model, padding=padding, change=watch), subject.kinds(model)
    trained = [seen.rows(kinds[name], x) for name, x in seen.run.tensors.items() if x.requires_grad]
    if not leaves or not trained:
        raise NotTriedError("no result has a gradient with respect to an input")
    slopes = torch.autograd.grad(loss_of(trained), list(leaves.values()), create_graph=True, allow_unused=True)
    found = {
        f"the slope by {name.split()[1]}": slope[seen.places[name.split()[0]]]
        for name, slope in zip(leaves, slopes, strict=True)
        if slope is not None
    }
    if curved := [slope.square().mean() for slope in found.values() if slope.requires_grad]:
        seconds = seen.run.gradients(torch.stack(curved).sum())
        found |= {f"the second derivative by {name}": second for name, second in seconds.items()}
    return found
