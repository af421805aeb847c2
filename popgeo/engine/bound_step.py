"""A step captured for arguments of certain shapes and bound to what runs it, and how it comes to be."""

import inspect
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from popgeo import largest_graph
from popgeo.capture import step_cache
from popgeo.capture.arguments import Arguments
from popgeo.capture.batch_arguments import BatchArguments
from popgeo.capture.capture_step import capture_step, trained_names
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import in_modes
from popgeo.capture.pytree import Container, Structure, unflatten
from popgeo.capture.structures import describe, first_difference, leaves, same, takes
from popgeo.engine.backend import Backend
from popgeo.engine.cuda_graph import CudaGraphRunner
from popgeo.engine.gradient_accumulation import check_batch_dimension, micro_batch
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.inductor import InductorRunner
from popgeo.engine.misuse import mark_as_done, refuse_empty_updates, warn_of_padded_norms
from popgeo.engine.model_watch import ModelWatch, autocast_around
from popgeo.engine.optimizer.flat_parameters import refuse_whole_tensors
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas, is_sharded, refuse_shared_statistics
from popgeo.engine.shards import require_all
from popgeo.engine.step_recipe import Recipe, RunFigures, StepPlan
from popgeo.engine.step_runner import StepRunner
from popgeo.filter_choice import filters_at_each_edge, tables_stay

NOTHING_ON_A_GPU = (
    "A step on a GPU keeps nothing of its own, neither random numbers nor buffers nor an optimizer's state. Save the "
    "state_dict of the model and of the optimizer, or use backend='cpu'."
)


@dataclass(kw_only=True, eq=False)
class BoundStep:
    """What compiling leaves: a captured step, how it is called, what runs it, and what that has cost so far.

    Attributes:
        signature: That of the function which was captured.
        arguments: How the tensors of a call nest, and what else it is given.
        step: What runs.
        runner: Runs it here.
        plan: How a machine would run it; None if it was compiled for this computer alone.
        compile_seconds: How long compiling took.
        run_seconds: How long all calls took together; on a GPU, how long they took to return.
        calls: How many there were.
        watch: Notices what has changed about the model since.
        largest_graph: Nodes of the largest graph that it was captured for; None if any graph of a batch will do.
    """

    signature: inspect.Signature
    arguments: Structure
    step: CapturedStep
    runner: StepRunner | CudaGraphRunner
    plan: StepPlan | None
    watch: ModelWatch
    largest_graph: int | None = None
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    calls: int = 0
    _forms: dict[tuple[Any, ...], list[tuple[int, Structure]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_batch = BatchArguments(self.signature)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call, and counts it unless it fails.

        Raises:
            ValueError: an argument differs from what the step was compiled for; the message names it.
        """
        tensors, graph_data = self.flatten(args, kwargs)
        start = time.perf_counter()
        results = self.runner.run(tensors)
        self.run_seconds += time.perf_counter() - start
        self.calls += 1
        if self.step.trained:
            mark_as_done(results)
        return self.unflatten(results, graph_data)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Tensor], list[Any]]:
        """The tensors of a call, and the graph data among its arguments.

        Raises:
            ValueError: an argument differs from what the step was compiled for; the message names it.
        """
        args, kwargs = self._of_batch(args, kwargs)
        form = self._forms.get((len(args), *kwargs))
        found: tuple[list[Tensor], list[Any]] = ([], [])
        if form is not None:
            parts = (*args, *kwargs.values())
            if all(takes(compiled, parts[position], *found) for position, compiled in form):
                return found
        given = Arguments.of(self.signature, args, kwargs)
        if not same(self.arguments, given.structure):
            given = given.like(self.arguments)
        if not same(self.arguments, given.structure):
            raise ValueError(
                f"{first_difference(self.arguments, given.structure)}. A compiled step has fixed shapes: give it what "
                "it was compiled for, or call reset() and compile again."
            )
        self._learn_form(len(args), tuple(kwargs))
        return given.tensors, given.graph_data

    def _learn_form(self, num_positional: int, keywords: tuple[str, ...]) -> None:
        """Notes where a call that names its arguments so has what the step was compiled for, in its order.

        The next one of this form need not be matched with the signature.
        """
        known = list(self.signature.parameters.values())
        given = [*(one.name for one in known[:num_positional]), *keywords]
        compiled = self.arguments
        if [one.kind for one in known] == [inspect.Parameter.VAR_POSITIONAL] and num_positional:
            (compiled,) = compiled.parts if isinstance(compiled, Container) else (compiled,)
            self._forms[num_positional,] = list(enumerate(compiled.parts if isinstance(compiled, Container) else ()))
            return
        plain = all(one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in known)
        if plain and isinstance(compiled, Container) and set(given) <= set(compiled.keys):
            parts = dict(zip(compiled.keys, compiled.parts, strict=True))
            order = [key for key in compiled.keys if key in given]
            form: tuple[Any, ...] = (num_positional, *keywords)
            self._forms[form] = [(given.index(key), parts[key]) for key in order]

    def follow_memory(self) -> None:
        """Binds the step to the memory in which the weights are now, if they have moved."""
        if self.watch.has_moved() and isinstance(self.runner, StepRunner):
            self.runner.bind()
        self.watch.look()  # binding moves weights too

    def unflatten(self, results: Sequence[Tensor], graph_data: Sequence[Any]) -> Any:
        """What the function returns, where results that are graph data are like that of the call."""
        return unflatten(self.step.result, results, graph_data)

    @property
    def on_processor(self) -> StepRunner:
        """What runs it on the processor.

        Raises:
            ValueError: a GPU does.
        """
        if isinstance(self.runner, StepRunner):
            return self.runner
        raise ValueError(NOTHING_ON_A_GPU)

    @property
    def planned(self) -> StepPlan:
        """How a machine would run it.

        Raises:
            ValueError: it was compiled for this computer alone.
        """
        if self.plan is None:
            raise ValueError(
                "The step was compiled for this computer alone, so no machine accounts for it. Use "
                "popgeo.training_model, popgeo.inference_model or popgeo.ipu.compile, which compile it for one too."
            )
        return self.plan

    def figures(self) -> RunFigures:
        """What the step has cost this computer so far."""
        runner = self.on_processor
        return RunFigures(
            compile_seconds=self.compile_seconds,
            run_seconds=self.run_seconds,
            calls=self.calls,
            state_bytes=runner.state_bytes,
            buffer_bytes=runner.buffer_bytes,
            how_it_runs=runner.how_it_runs(),
        )


def bind_step(recipe: Recipe, arguments: Arguments, replicas: Replicas) -> BoundStep:
    """Captures a step, or finds it in the folder of kept ones, makes sure that it fits, and binds it to the weights.

    Where anything is refused on the way, the model and the optimizer are as they were.

    Args:
        recipe: The step to compile.
        arguments: Those of a call, with all its micro-batches.
        replicas: Those that run in this process.

    Raises:
        DynamicShapeError: a shape depends on data.
        OutOfTileMemory: the machine is strict, and a tile of it needs more memory than it has.
        ValueError: no loss or several, tensors that cannot be divided into micro-batches, a limit to the norm of
            gradients of which each process has a part, or a model to train of whose shards others are elsewhere.
    """
    start = time.perf_counter()
    factor = recipe.options.steps_per_call * len(replicas.local)
    check_batch_dimension(arguments.structure, factor)
    for tensor in arguments.tensors:
        if tensor.is_meta:
            raise ValueError(
                f"A tensor of shape {list(tensor.shape)} lies on torch's meta device, so it has no values to compute "
                "with. Pass torch.zeros_like(it, device='cpu'); popgeo.ipu.estimate plans from shapes alone."
            )
    one = arguments.with_tensors(micro_batch(arguments.tensors, 0, factor))
    trained = trained_names(recipe.function, recipe.optimizer)
    _require_trainable(recipe, trained, replicas)
    largest = largest_graph.noted(arguments.tensors)
    with in_modes(recipe.module, recipe.modes), largest_graph.capturing_for(largest) as known:
        if recipe.backend is Backend.CUDA:
            step, plan = _captured(recipe, one, trained), None
            update_inputs = arguments.with_tensors(micro_batch(arguments.tensors, 0, recipe.options.device_iterations))
            runner: StepRunner | CudaGraphRunner = CudaGraphRunner(recipe, step, update_inputs, torch.cuda)
        else:
            kind = InductorRunner if recipe.backend is Backend.INDUCTOR else GraphRunner
            with tables_stay() if recipe.optimizer is None and kind is GraphRunner else nullcontext():
                step, update, plan = _fitting(recipe, one, trained, replicas)
            staging = None if plan is None else plan.staging
            runner = StepRunner(step, recipe.module, recipe.options, update, replicas, kind, staging)
            shared = [parameter for parameter in recipe.module.parameters() if not is_sharded(parameter)]
            replicas.share_weights([*shared, *recipe.module.buffers()])
            runner.reset_buffers()
        warn_of_padded_norms(recipe.module, (name for name, _ in leaves(arguments.structure)))
    if recipe.optimizer is not None:
        refuse_empty_updates(recipe.optimizer)
    seconds = time.perf_counter() - start
    return BoundStep(
        signature=recipe.signature,
        arguments=arguments.structure,
        step=step,
        runner=runner,
        plan=plan,
        watch=ModelWatch(recipe.module, recipe.modes, step.reads, trains=recipe.optimizer is not None),
        largest_graph=largest if known.was_asked or recipe.options.cache_dir is not None else None,
        compile_seconds=seconds,
    )


def _fitting(
    recipe: Recipe, arguments: Arguments, trained: Sequence[str], replicas: Replicas
) -> tuple[CapturedStep, Update | None, StepPlan | None]:
    """A step, its update and the machine's plan of it, where the machine refuses none of them."""
    options = recipe.options
    key = None if options.cache_dir is None else _key(recipe, arguments, trained)
    kept = step_cache.load(options.cache_dir, key, recipe.module, arguments, trained)
    step = kept or _captured(recipe, arguments, trained)
    update = None
    if recipe.optimizer is not None:
        parameters = {name: p for name, p in recipe.module.named_parameters() if name in step.trained}
        part = (replicas.local[0], replicas.world_size) if options.shard_optimizer_state else (0, 1)
        update = Update(recipe.optimizer, parameters, options, recipe.learning_rate, part=part)
    plan = None
    if recipe.machine is not None:
        plan = recipe.machine.plan(recipe, arguments, _accounted(recipe, arguments, trained, step), update)
        if kept is None:  # a kept step has passed this
            plan.require_fit()
    if kept is None:
        step_cache.save(options.cache_dir, key, step)
    return step, update, plan


def _accounted(recipe: Recipe, arguments: Arguments, trained: Sequence[str], step: CapturedStep) -> CapturedStep:
    """The step that a machine accounts for: with filter networks at each edge, as published programs have them."""
    if not any(op.target.startswith("popgeo.interaction") for op in step.graph.ops):
        return step
    with filters_at_each_edge():
        return _captured(recipe, arguments, trained)


def _captured(recipe: Recipe, arguments: Arguments, trained: Sequence[str]) -> CapturedStep:
    with nullcontext() if recipe.machine is None else recipe.machine.capturing():
        return capture_step(
            recipe.function,
            arguments,
            trained=trained,
            loss_scaling=recipe.options.constant_loss_scaling,
            autocast=recipe.autocast or autocast_around(),
            show_progress=recipe.options.show_progress,
        )


def _key(recipe: Recipe, arguments: Arguments, trained: Sequence[str]) -> str | None:
    """The name that a step is kept under: all that decides the capture and, with a machine, whether it fits."""
    decides = [] if recipe.machine is None else recipe.machine.what_decides(recipe.optimizer)
    scaling = recipe.options.constant_loss_scaling
    decides = [largest_graph.noted(arguments.tensors), recipe.autocast or autocast_around(), *decides]
    return step_cache.key_of(recipe.module, *describe(arguments.structure), *trained, scaling, *decides)


def _require_trainable(recipe: Recipe, trained: Sequence[str], replicas: Replicas) -> None:
    """Refuses to train a model of whose shards others are elsewhere, if this cannot be done."""
    if recipe.optimizer is None:
        return
    refuse_shared_statistics(recipe.module, recipe.options.replication_factor)
    require_all(recipe.module)
    own = [name for name, p in recipe.module.named_parameters() if name in trained and is_sharded(p)]
    if not own or replicas.world_size == 1:
        return
    refuse_whole_tensors(recipe.optimizer, f"Each process has a part of {', '.join(own)} alone")
    if recipe.options.max_grad_norm is not None:
        raise ValueError(
            f"Options.max_grad_norm is {recipe.options.max_grad_norm}, but each process has a part of "
            f"{', '.join(own)}, and none knows the norm of all gradients. Leave it out."
        )
