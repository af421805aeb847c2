"""How a step comes to be: captured, or found among the kept ones, made to fit, and bound to weights and a runner."""

import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from popgeo import largest_graph
from popgeo.capture import step_cache
from popgeo.capture.arguments import Arguments
from popgeo.capture.capture_step import capture_step, trained_names, unregistered_parameters
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import in_modes
from popgeo.capture.structures import describe, leaves
from popgeo.engine.backend import Backend
from popgeo.engine.bound_step import BoundStep
from popgeo.engine.cuda_graph import CudaGraphRunner
from popgeo.engine.freed_memory import require_arguments, require_weights
from popgeo.engine.gradient_accumulation import check_batch_dimension, micro_batch
from popgeo.engine.misuse import check_masks_of_loss, refuse_empty_updates, warn_of_padded_norms
from popgeo.engine.model_watch import ModelWatch, autocast_around
from popgeo.engine.optimizer.flat_parameters import refuse_whole_tensors
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas, is_sharded, refuse_shared_statistics
from popgeo.engine.shards import require_all
from popgeo.engine.step_recipe import Recipe, StepPlan
from popgeo.engine.step_runner import StepRunner
from popgeo.filter_choice import filters_at_each_edge, tables_stay


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
    require_arguments(arguments.structure, arguments.tensors)
    require_weights(recipe.module)
    one = arguments.with_tensors(micro_batch(arguments.tensors, 0, factor))
    trained = trained_names(recipe.function, recipe.optimizer)
    _require_trainable(recipe, trained, replicas)
    largest = largest_graph.noted(arguments.tensors)
    with in_modes(recipe.module, recipe.modes), largest_graph.capturing_for(largest) as known:
        if recipe.backend is Backend.CUDA:
            step, plan = _captured(recipe, one, trained), None
            check_masks_of_loss(step, one, factor)
            update_inputs = arguments.with_tensors(micro_batch(arguments.tensors, 0, recipe.options.device_iterations))
            runner: StepRunner | CudaGraphRunner = CudaGraphRunner(recipe, step, update_inputs, torch.cuda)
        else:
            weights_stay = recipe.optimizer is None and recipe.backend is Backend.CPU
            with tables_stay() if weights_stay else nullcontext():
                step, update, plan = _fitting(recipe, one, trained, replicas)
            check_masks_of_loss(step, one, factor)
            shared = [parameter for parameter in recipe.module.parameters() if not is_sharded(parameter)]
            replicas.share_weights([*shared, *recipe.module.buffers()])
            runner = StepRunner(recipe, step, update, replicas, None if plan is None else plan.staging)
        warn_of_padded_norms(recipe.module, (name for name, _ in leaves(arguments.structure)))
    if recipe.optimizer is not None:
        refuse_empty_updates(recipe.optimizer)
    return BoundStep(
        signature=recipe.signature,
        arguments=arguments.structure,
        step=step,
        runner=runner,
        plan=plan,
        watch=ModelWatch(recipe.module, recipe.modes, step.reads, trains=recipe.optimizer is not None),
        largest_graph=largest if known.was_asked or recipe.options.cache_dir is not None else None,
        compile_seconds=time.perf_counter() - start,
    )


def _fitting(
    recipe: Recipe, arguments: Arguments, trained: Sequence[str], replicas: Replicas
) -> tuple[CapturedStep, Update | None, StepPlan | None]:
    """A step, its update and the machine's plan of it, where the machine refuses none of them."""
    options = recipe.options
    keeps = options.cache_dir is not None and not unregistered_parameters(recipe.function, recipe.optimizer)
    key = _key(recipe, arguments, trained) if keeps else None
    kept = step_cache.load(options.cache_dir, key, arguments)
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
        scale, is_shown = recipe.options.constant_loss_scaling, recipe.options.show_progress
        casts = recipe.autocast or autocast_around()
        return capture_step(
            recipe.function,
            arguments,
            trained=trained,
            unregistered=unregistered_parameters(recipe.function, recipe.optimizer),
            loss_scaling=scale,
            autocast=casts,
            show_progress=is_shown,
        )


def _key(recipe: Recipe, arguments: Arguments, trained: Sequence[str]) -> str | None:
    """The name that a step is kept under: all that decides the capture and, with a machine, whether it fits."""
    decides = [] if recipe.machine is None else recipe.machine.what_decides(recipe.optimizer)
    scaling = recipe.options.constant_loss_scaling
    around = recipe.autocast or autocast_around(), torch.get_default_dtype()
    decides = [largest_graph.noted(arguments.tensors), *around, *decides]
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
