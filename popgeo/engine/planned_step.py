"""The memory of a step, from the shapes of its arguments: compiled by this library, and in eager torch."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from popgeo.capture.arguments import Arguments
from popgeo.capture.op_graph import Role
from popgeo.engine.bind_step import bind_step
from popgeo.engine.eager_memory import Allocations, eager_peak
from popgeo.engine.gradient_accumulation import micro_batch
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.memory_plan import planned_memory, storage_bytes
from popgeo.engine.optimizer.update_memory import compiled_update, eager_update
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import OutputMode
from popgeo.engine.step_recipe import Recipe
from popgeo.filter_choice import parts_with_filters


@dataclass(frozen=True, kw_only=True)
class BytesByKind:
    """The bytes of a step by kind, at the moment when they are most.

    Attributes:
        weights: Weights and buffers; in a compiled step also constants, and weights joined for the update.
        optimizer_state: State of the optimizer.
        gradients: Gradients of the weights.
        activations: Results of the forward pass that later operations need; in a compiled step all results.
        workspace: Other results for a short time, and results that the step returns.
        batch: Arguments of a call, and their places in a compiled step.
    """

    weights: int
    optimizer_state: int = 0
    gradients: int = 0
    activations: int
    workspace: int
    batch: int

    @property
    def peak(self) -> int:
        """Bytes of all kinds."""
        return sum(asdict(self).values())


def _filter_memory(module: nn.Module) -> tuple[int, int]:
    """Check the filters on grids; return the bytes that the check keeps, and its peak bytes."""
    with Allocations() as made:
        for part in parts_with_filters(module):
            part.refine_filters()
    return made.held, made.peak().nbytes


def compiled_use(recipe: Recipe, arguments: Arguments) -> tuple[BytesByKind, Any]:
    """Return the memory of a compiled step, and the captured step. The step does not run, and its memory stays unused.

    Args:
        recipe: The step, for this library's executor.
        arguments: Arguments of a call.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: the step cannot be compiled; see `bind_step`.
    """
    kept, most = _filter_memory(recipe.module)
    most = 0 if recipe.optimizer is None else most - kept  # constant weights are checked before the step has memory
    with planned_memory() as memory:
        bound = bind_step(recipe, arguments, Replicas.of_this_process(recipe.options.replication_factor))
        runner = bound.on_processor
        program = runner.usual
    assert isinstance(program, GraphRunner), "the default backend"
    step, update = bound.step, runner.update
    inputs = sum(step.graph.values[v].nbytes for v in step.graph.inputs_of(Role.ARGUMENT).values())
    returned = [step.graph.values[v].nbytes for v in step.graph.outputs[: step.num_returned] if v is not None]
    returns_all = recipe.options.chosen_output_mode(trains=update is not None) is not OutputMode.FINAL
    if returns_all and recipe.options.batch_factor > 1:  # a call keeps the results of each micro-batch, then joins them
        returned = returned * 2 * recipe.options.batch_factor
    weights = storage_bytes((*recipe.module.parameters(), *recipe.module.buffers())) + kept + program.constant_bytes
    most, of_update = max(most, program.copied_bytes), {}
    if update is not None:
        own = compiled_update(update, most)
        of_update = {"optimizer_state": own.state, "gradients": update.gradient_bytes}
        weights, most = weights + update.joined_bytes, own.most
    use = BytesByKind(
        weights=weights,
        activations=sum(memory.sizes) - inputs,
        workspace=most + sum(returned),
        batch=storage_bytes(arguments.tensors) + inputs,
        **of_update,
    )
    return use, step


def eager_use(recipe: Recipe, arguments: Arguments, step: Any) -> BytesByKind:
    """Return the memory of an eager step: forward pass and, in training, backward pass and update.

    Args:
        recipe: The step.
        arguments: Arguments of a call; each of its micro-batches has its own forward and backward pass.
        step: The captured step.
    """
    given = storage_bytes(arguments.tensors)
    arguments = arguments.with_tensors(micro_batch(arguments.tensors, 0, recipe.options.batch_factor))
    casting = None if recipe.autocast is None else torch.autocast("cpu", dtype=recipe.autocast)
    peak = eager_peak(recipe.function, arguments, step, casting)
    of_filters, checked = _filter_memory(recipe.module)
    kept = {"weights": storage_bytes((*recipe.module.parameters(), *recipe.module.buffers())) + of_filters}
    kept["batch"] = given
    activations = peak.by_phase.get("forward", 0)
    during = {"activations": activations, "gradients": peak.kept, "workspace": peak.nbytes - activations - peak.kept}
    if checked - of_filters > peak.nbytes:
        during = {"activations": 0, "gradients": 0, "workspace": checked - of_filters}
    if recipe.optimizer is not None:
        update = eager_update(recipe.optimizer)
        kept["optimizer_state"] = update.state
        gradients = sum(p.nbytes for name, p in recipe.module.named_parameters() if name in step.trained)
        if gradients + update.most > sum(during.values()):
            during = {"activations": 0, "gradients": gradients, "workspace": update.most}
    return BytesByKind(**kept, **during)
