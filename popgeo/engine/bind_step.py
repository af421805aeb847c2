"""Compiles a step: captures it or reads it from the cache, checks the fit, and binds it to weights and a runner."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.optim import Optimizer

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
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe, StepPlan
from popgeo.engine.step_runner import StepRunner
from popgeo.filter_choice import filters_at_each_edge, one_form_of_any_shape, parts_with_filters, tables_stay


def bind_step(recipe: Recipe, arguments: Arguments, replicas: Replicas) -> BoundStep:
    """Capture a step or read it from the cache, check that it fits, and bind it to the weights.

    After an error, the model and the optimizer are unchanged.

    Args:
        recipe: The step to compile.
        arguments: The arguments of a call, with all its micro-batches.
        replicas: The replicas that run in this process.

    Raises:
        DynamicShapeError: a shape depends on data.
        OutOfTileMemory: the machine is strict, and a tile of it needs more memory than it has.
        ValueError: the model returns no loss or several, the tensors cannot be divided into micro-batches, or the
            model is sharded over processes and the options do not support that.
    """
    start = time.perf_counter()
    model, optimizer, options, machine = recipe.module, recipe.optimizer, recipe.options, recipe.machine
    factor = options.steps_per_call * len(replicas.local)
    check_batch_dimension(arguments.structure, factor)
    require_arguments(arguments.structure, arguments.tensors)
    require_weights(model)
    filters = parts_with_filters(model)
    for part in filters:
        part.refine_filters()
    one = arguments.with_tensors(micro_batch(arguments.tensors, 0, factor))
    trained = trained_names(recipe.function, optimizer)
    if optimizer is not None:
        _require_trainable(model, optimizer, options, trained, replicas)
    largest = largest_graph.noted(arguments.tensors)

    def capture() -> CapturedStep:
        one_form = one_form_of_any_shape() if options.batch_invariant else nullcontext()
        with nullcontext() if machine is None else machine.capturing(), one_form:
            return capture_step(
                recipe.function,
                one,
                trained=trained,
                unregistered=unregistered_parameters(recipe.function, optimizer),
                loss_scaling=options.constant_loss_scaling,
                autocast=recipe.autocast or autocast_around(),
                show_progress=options.show_progress,
            )

    shared = [*(parameter for parameter in model.parameters() if not is_sharded(parameter)), *model.buffers()]
    with in_modes(model, recipe.modes), largest_graph.capturing_for(largest) as known:
        if recipe.backend is Backend.CUDA:
            step, plan = capture(), None
            check_masks_of_loss(step, one, factor)
            update_inputs = arguments.with_tensors(micro_batch(arguments.tensors, 0, options.device_iterations))
            replicas.share_weights(shared)
            runner: StepRunner | CudaGraphRunner
            runner = CudaGraphRunner(recipe, step, update_inputs, replicas, largest, torch.cuda)
        else:
            weights_stay = optimizer is None and recipe.backend is Backend.CPU
            with tables_stay() if weights_stay else nullcontext():
                step, update, plan = _capture_and_plan(recipe, one, trained, replicas, capture)
            check_masks_of_loss(step, one, factor)
            replicas.share_weights(shared)
            staging = None if plan is None else plan.staging
            is_padded = largest is not None or _has_masks(arguments)
            runner = StepRunner(
                model, options, recipe.backend, step, update, replicas, staging, is_padded, recipe.average
            )
        warn_of_padded_norms(model, (name for name, _ in leaves(arguments.structure)))
    if optimizer is not None and recipe.refuses_empty_updates:
        refuse_empty_updates(optimizer)
    return BoundStep(
        signature=recipe.signature,
        arguments=arguments.structure,
        step=step,
        runner=runner,
        plan=plan,
        watch=ModelWatch(model, recipe.modes, step.reads, trains=optimizer is not None),
        filters=filters,
        largest_graph=largest if known.was_asked or options.cache_dir is not None else None,
        compile_seconds=time.perf_counter() - start,
    )


def _capture_and_plan(
    recipe: Recipe,
    arguments: Arguments,
    trained: Sequence[str],
    replicas: Replicas,
    capture: Callable[[], CapturedStep],
) -> tuple[CapturedStep, Update | None, StepPlan | None]:
    """Return the captured step, its update, and the machine's plan; the cache keeps a step that the machine accepts."""
    model, optimizer, options, machine = recipe.module, recipe.optimizer, recipe.options, recipe.machine
    key = None
    if options.cache_dir is not None and not unregistered_parameters(recipe.function, optimizer):
        # The key covers everything that affects the captured step and, with a machine, whether the step fits.
        decides = [] if machine is None else machine.what_decides(optimizer)
        around = recipe.autocast or autocast_around(), torch.get_default_dtype()
        decides = [largest_graph.noted(arguments.tensors), options.batch_invariant, *around, *decides]
        layouts = [*describe(arguments.structure), *(one.stride() for one in arguments.tensors)]
        key = step_cache.key_of(model, *layouts, *trained, options.constant_loss_scaling, *decides)
    kept = step_cache.load(options.cache_dir, key, arguments)
    step = kept or capture()
    update = plan = None
    if optimizer is not None:
        parameters = {name: p for name, p in model.named_parameters() if name in step.trained}
        part = (replicas.local[0], replicas.world_size) if options.shard_optimizer_state else (0, 1)
        update = Update(optimizer, parameters, options, recipe.learning_rate, part=part)
    if machine is not None:
        accounted = step
        if any(op.target.startswith("popgeo.interaction") for op in step.graph.ops):
            with filters_at_each_edge():  # as in the published programs that the machine models
                accounted = capture()
        plan = machine.plan(recipe, arguments, accounted, update)
        if kept is None:  # a step in the cache has passed this check
            plan.require_fit()
    if kept is None:
        step_cache.save(options.cache_dir, key, step)
    return step, update, plan


def _has_masks(arguments: Arguments) -> bool:
    """Return whether the arguments, or the batch that they come from, have masks of padding."""
    names = [name for name, _ in leaves(arguments.structure)]
    return hasattr(arguments.batch, "graphs_mask") or any("mask" in name for name in names)


def _require_trainable(
    model: nn.Module, optimizer: Optimizer, options: StepOptions, trained: Sequence[str], replicas: Replicas
) -> None:
    """Raise if the model is sharded over processes and the options do not support that."""
    refuse_shared_statistics(model, options.replication_factor)
    require_all(model)
    own = [name for name, p in model.named_parameters() if name in trained and is_sharded(p)]
    if not own or replicas.world_size == 1:
        return
    refuse_whole_tensors(optimizer, f"Each process has a part of {', '.join(own)} alone")
    if options.max_grad_norm is not None:
        raise ValueError(
            f"Options.max_grad_norm is {options.max_grad_norm}, but each process has only a part of "
            f"{', '.join(own)}, so no process knows the norm of all gradients. Leave it out."
        )
