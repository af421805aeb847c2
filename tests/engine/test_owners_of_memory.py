"""Changes that owners make to parameters and optimizer state between steps have the same effect as in eager code."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import popgeo


class Net(nn.Module):
    """An encoder with a buffer that it changes, a head, and a scale without dimensions."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.encoder, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(self.encoder(self.norm(x)).tanh()) * self.scale - 1).square().mean()


class Signs(torch.optim.Optimizer):
    """An optimizer that popgeo does not know: momentum by signs."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p)).lerp_(p.grad, 0.2)
                p.sub_(kept.sign(), alpha=group["lr"])


class Elementwise(Signs):
    """`Signs` with the mark that it works element by element."""

    elementwise = True


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05),
    "foreign": lambda params: Signs(params, lr=0.02),
    "elementwise": lambda params: Elementwise(params, lr=0.02),
}


class Run:
    """A model in training, compiled or eager, and copies that its owner keeps."""

    def __init__(self, kind: str, compiled: bool) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.step = popgeo.compile_step(self.model, self.optimizer) if compiled else self.eager
        self.kept: Any = None

    def eager(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x)
        loss.backward()
        self.optimizer.step()
        return loss

    def everything(self) -> list[Tensor]:
        """Return all tensors that the owner can see."""
        state = self.optimizer.state_dict()["state"]
        found = [*self.model.state_dict().values(), *(part for one in state.values() for part in one.values())]
        kept = self.kept.state_dict().values() if isinstance(self.kept, nn.Module) else self.kept or ()
        return [tensor.detach().clone() for tensor in (*found, *kept)]


def exchange(run: Run, number: int) -> None:
    """Exchange weights for their averages through `.data`, as for an evaluation, and keep that for one step."""
    run.kept = run.kept or copy.deepcopy(run.model)
    for own, average in zip(run.model.parameters(), run.kept.parameters(), strict=True):
        own.data, average.data = average.data, own.data


def average(run: Run, number: int) -> None:
    run.kept = run.kept or copy.deepcopy(run.model)
    for own, mean in zip(run.model.parameters(), run.kept.parameters(), strict=True):
        mean.data.lerp_(own.data, 0.5)


def keep_by_reference(run: Run, number: int) -> None:
    run.kept = [*run.model.state_dict().values()]


def best_weights_back(run: Run, number: int) -> None:
    if number == 0:
        run.best = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    else:
        run.model.load_state_dict(run.best)


def assigned(run: Run, number: int) -> None:
    given = {name: tensor + 0.1 for name, tensor in run.model.state_dict().items()}
    run.model.load_state_dict(given, assign=True)
    run.optimizer.param_groups[0]["params"] = [*run.model.parameters()]
    run.optimizer.state.clear()
    if isinstance(run.step, popgeo.engine.compiled_step.CompiledStep):
        run.step.reset()


def views_of_a_vector(run: Run, number: int) -> None:
    vector = parameters_to_vector(run.model.parameters()).detach() * 0.9
    vector_to_parameters(vector, run.model.parameters())
    run.kept = [vector]  # goes on with the weights


def set_to_another(run: Run, number: int) -> None:
    run.kept = [torch.full((4, 4), 0.3)]
    with torch.no_grad():
        run.model.head.weight.set_(run.kept[0])


def columns_of_a_matrix(run: Run, number: int) -> None:
    run.kept = [torch.linspace(-1, 1, 32).view(4, 8)]
    run.model.encoder.weight.data, run.model.head.weight.data = run.kept[0][:, :4], run.kept[0][:, 4:]


def tie_memory(run: Run, number: int) -> None:
    run.model.head.weight.data = run.model.encoder.weight.data


def tie_partly(run: Run, number: int) -> None:
    run.model.head.bias.data = run.model.encoder.weight.data[2]


def untie_memory(run: Run, number: int) -> None:
    run.model.head.weight.data = run.model.encoder.weight.data if number == 0 else run.model.head.weight.data.clone()


def tie_parameters(run: Run, number: int) -> None:
    run.model.head.weight = run.model.encoder.weight


def freeze(run: Run, number: int) -> None:
    run.model.encoder.requires_grad_(number == 1)
    run.model.encoder.zero_grad()


def copied(run: Run, number: int) -> None:
    run.model.load_state_dict(copy.deepcopy(run.model).state_dict())
    run.kept = run.kept or copy.deepcopy(run.model)


def pickled(run: Run, number: int) -> None:
    run.kept = pickle.loads(pickle.dumps(run.model))
    run.optimizer.load_state_dict(pickle.loads(pickle.dumps(run.optimizer.state_dict())))


def shared(run: Run, number: int) -> None:
    run.model.share_memory()


def shared_state(run: Run, number: int) -> None:
    for state in run.optimizer.state.values():
        for part in state.values():
            part.share_memory_()


def edit_in_place(run: Run, number: int) -> None:
    with torch.no_grad():
        run.model.encoder.weight.mul_(0.5)
    run.model.scale.data.add_(0.1)


def move_state(run: Run, number: int) -> None:
    for state in run.optimizer.state.values():
        for part in state.values():
            part.data = part.data * 0.5


def exchange_state(run: Run, number: int) -> None:
    first, second = (run.optimizer.state[p] for p in (run.model.encoder.weight, run.model.head.weight))
    for key in first:
        first[key].data, second[key].data = second[key].data, first[key].data


def set_back_state(run: Run, number: int) -> None:
    run.optimizer.state.clear()


def zero_state(run: Run, number: int) -> None:
    for state in run.optimizer.state.values():
        for part in state.values():
            part.zero_()


def swap_modules(run: Run, number: int) -> None:
    run.model.encoder, run.model.head = run.model.head, run.model.encoder


ACTIONS = [
    exchange, average, keep_by_reference, best_weights_back, assigned, views_of_a_vector, set_to_another,
    columns_of_a_matrix, tie_memory, tie_partly, untie_memory, tie_parameters, freeze, copied, pickled, shared,
    shared_state, edit_in_place, move_state, exchange_state, set_back_state, zero_state, swap_modules,
]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_an_owner_does_between_steps_counts_as_in_eager_code(kind: str, action: Callable[[Run, int], None]):
    runs = [Run(kind, compiled) for compiled in (True, False)]
    torch.manual_seed(1)
    batches = torch.randn(9, 8, 4)
    for number, x in enumerate(batches):
        if number in (3, 6):  # the update has been captured by then
            for run in runs:
                action(run, number // 3 - 1)
        losses = [run.step(x) for run in runs]
        torch.testing.assert_close(losses[0], losses[1].detach(), msg=f"step {number}")
        for mine, theirs in zip(*(run.everything() for run in runs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
