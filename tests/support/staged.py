"""Steps of small models in stages, in any order of passes, and eager torch with one micro-batch at a time."""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.held_state import module_state
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.run_round import RoundRunner
from popgeo.engine.pipeline.staging import Pass, Recompute, Staging
from popgeo.ipu.systems.stage_cut import cut, cut_by_layers, layers_of


@dataclass(kw_only=True)
class ModelRun:
    """The state after a round: results by micro-batch and replica, gradients, buffers, random numbers."""

    results: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    random: list[Tensor] = field(default_factory=list)


def generators(replicas: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(7 + replica) for replica in range(replicas)]


def eager(model: nn.Module, inputs: Sequence[Sequence[Sequence[Tensor]]]) -> ModelRun:
    """Run one micro-batch after the other; replicas share parameters and buffers."""
    model, seen = copy.deepcopy(model), ModelRun()
    sources = generators(len(inputs[0]))
    before = torch.get_rng_state()
    for micro_batch, of_replicas in enumerate(inputs):
        for replica, given in enumerate(of_replicas):
            torch.set_rng_state(sources[replica].get_state())
            results = model(*(tensor.clone() for tensor in given))
            loss = results[0] if isinstance(results, tuple) else results
            if loss.requires_grad:
                loss.backward()
            sources[replica].set_state(torch.get_rng_state())
            results = results if isinstance(results, tuple) else (results,)
            seen.results[micro_batch, replica] = [tensor.detach().clone() for tensor in results]
    torch.set_rng_state(before)
    seen.gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    seen.buffers = dict(model.named_buffers())
    seen.random = [one.get_state() for one in sources]
    return seen


class Staged:
    """A model's step in stages."""

    def __init__(
        self,
        model: nn.Module,
        given: Sequence[Tensor],
        layers: Sequence[int],
        order: Sequence[Pass],
        recompute: Recompute | None = None,
        checks: bool = False,
    ) -> None:
        self.model = copy.deepcopy(model)
        trained = [name for name, p in self.model.named_parameters() if p.requires_grad]
        arguments: Arguments = bind(self.model, *given)
        self.step = capture_step(self.model, arguments, trained=trained)
        graph = fold_constants(self.step.graph)
        blocks = layers_of(graph)
        firsts = cut_by_layers(blocks, layers)
        made = cut(graph, blocks, firsts, range(len(firsts)))
        staging = Staging(stage_of=made.stage_of, order=tuple(order), recompute=recompute, names=made.names)
        parameters = dict(self.model.named_parameters())
        self.gradients = {name: torch.zeros_like(parameters[name].detach()) for name in self.step.trained}
        self.runner = RoundRunner(
            graph, staging, module_state(self.model), self.step.num_results, self.gradients, checks
        )  # fmt: skip
        self.entered: list[int] = []
        self.finished: list[tuple[int, int]] = []

    @contextmanager
    def _of_replica(self, replica: int) -> Iterator[None]:
        self.entered.append(replica)
        yield

    def run(self, inputs: Sequence[Sequence[Sequence[Tensor]]]) -> ModelRun:
        seen, sources = ModelRun(), generators(len(inputs[0]))

        def accumulate(names: Sequence[str], first: bool) -> None:
            for name in names:
                assert first is (name not in seen.gradients)
                seen.gradients[name] = seen.gradients.get(name, 0) + self.gradients[name]

        def finish(micro_batch: int, replica: int, made: list[Tensor | None]) -> None:
            assert (micro_batch, replica) not in seen.results
            self.finished.append((micro_batch, replica))
            seen.results[micro_batch, replica] = [t.clone() for t in made[: self.step.num_returned] if t is not None]

        before = torch.get_rng_state()
        self.runner.run(inputs, sources, on_results=finish, on_gradients=accumulate, of_replica=self._of_replica)
        assert torch.equal(torch.get_rng_state(), before)
        seen.buffers = dict(self.model.named_buffers())
        seen.random = [one.get_state() for one in sources]
        return seen


def assert_same(found: ModelRun, expected: ModelRun) -> None:
    assert found.results.keys() == expected.results.keys()
    for key, results in expected.results.items():
        torch.testing.assert_close(found.results[key], results, rtol=1e-9, atol=1e-11)
    for mine, theirs in ((found.gradients, expected.gradients), (found.buffers, expected.buffers)):
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(mine[name], tensor, rtol=1e-9, atol=1e-11)
    assert all(map(torch.equal, found.random, expected.random))


def all_of_one(stages: int, micro_batches: int, trains: bool = True) -> list[Pass]:
    """Return an order of passes that finishes each micro-batch before the next starts."""
    return [
        Pass(stage, micro_batch, backward)
        for micro_batch in range(micro_batches)
        for backward in ((False, True) if trains else (False,))
        for stage in (reversed(range(stages)) if backward else range(stages))
    ]


def shuffled(stages: int, micro_batches: int, seed: int) -> list[Pass]:
    """Return a random valid order of passes, with micro-batches in turn on each stage."""
    waiting, done, order = set(all_of_one(stages, micro_batches)), set[Pass](), list[Pass]()
    chance = random.Random(seed)

    def needs(one: Pass) -> list[Pass]:
        before = [one._replace(micro_batch=one.micro_batch - 1)] if one.micro_batch else []
        if one.backward:
            last = one.stage == stages - 1
            return [*before, one._replace(backward=False) if last else one._replace(stage=one.stage + 1)]
        return [*before, *([one._replace(stage=one.stage - 1)] if one.stage else [])]

    while waiting:
        chosen = chance.choice(sorted(one for one in waiting if done.issuperset(needs(one))))
        waiting.remove(chosen)
        done.add(chosen)
        order.append(chosen)
    return order
