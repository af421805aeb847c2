"""Compiles a model's step: captures it or finds it in a folder, makes sure that it fits, and keeps it."""

from collections.abc import Callable, Sequence
from dataclasses import astuple

from torch import nn
from torch.optim import Optimizer

from popgeo.capture import step_cache
from popgeo.capture.arguments import Arguments
from popgeo.capture.capture_step import capture_step
from popgeo.capture.fingerprint import hash_sources
from popgeo.capture.structures import describe
from popgeo.engine import micro_batches
from popgeo.engine.bound_call import BoundCall
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas, is_sharded
from popgeo.engine.shards import require_all
from popgeo.ipu.compiled import Compiled
from popgeo.ipu.options import Options
from popgeo.ipu.systems.share import is_shared, share_of

# What a kept step depends on besides its capture: whether it fits the tiles.
DECIDES = (
    "engine/optimizer/**/*.py", "ipu/cost/**/*.py", "ipu/systems/**/*.py", "ipu/tiles/**/*.py", "ipu/step_cost.py",
    "ipu/target.py",
)  # fmt: skip
_REMEDY = "A compiled step has fixed shapes: give it what it was compiled for, or call destroy() and compile anew."


def compile_step(
    model: nn.Module,
    arguments: Arguments,
    options: Options,
    replicas: Replicas,
    optimizer: Optimizer | None = None,
    *,
    learning_rate: Callable[[int], float] | None = None,
) -> Compiled:
    """A model's step for such arguments. Neither the model nor the optimizer changes.

    Args:
        model: What is captured.
        arguments: Those of a call, with all its micro-batches.
        options: How often a call repeats the step, what it is compiled for, and where it is kept.
        replicas: Those that run in this process.
        optimizer: Holds the parameters to train; None for inference.
        learning_rate: The rate of each update, instead of the optimizer's own.

    Raises:
        DynamicShapeError: a shape depends on data.
        OutOfTileMemory: the options are strict and a tile needs more memory than it has.
        ValueError: no loss or several, tensors that cannot be divided into micro-batches, a limit to the norm of
            gradients of which each process has a part, or a model to train of whose shards others are elsewhere.
    """
    if optimizer is not None:
        require_all(model)
    factor = options.steps_per_call * len(replicas.local)
    micro_batches.check_batch_dimension(arguments.structure, factor)
    micro_batch = arguments.with_tensors(micro_batches.micro_batch(arguments.tensors, 0, factor))
    held = {p for group in optimizer.param_groups for p in group["params"]} if optimizer is not None else set()
    trained = [name for name, p in model.named_parameters() if p in held and p.requires_grad]

    own = [name for name, p in model.named_parameters() if name in trained and is_sharded(p)]
    if own and replicas.world_size > 1 and options.max_grad_norm is not None:
        raise ValueError(
            f"Options.max_grad_norm is {options.max_grad_norm}, but each process has a part of {', '.join(own)}, and "
            "none knows the norm of all gradients. Leave it out."
        )

    key = None
    if options.cache_dir is not None:
        key = step_cache.key_of(model, *_choices(micro_batch, trained, options, optimizer))
    kept = step_cache.load(options.cache_dir, key, micro_batch.graph_data)
    step = kept or capture_step(
        model,
        micro_batch,
        trained=trained,
        loss_scaling=options.constant_loss_scaling,
        show_progress=options.show_progress,
    )
    update = None
    if optimizer is not None:
        parameters = {name: p for name, p in model.named_parameters() if name in step.trained}
        number = replicas.local[0] if options.shard_optimizer_state else 0
        parts = replicas.world_size if options.shard_optimizer_state else 1
        update = Update(optimizer, parameters, options, learning_rate, part=(number, parts))
    call = BoundCall(
        signature=arguments.signature, arguments=arguments.structure, result=step.result, remedy=_REMEDY
    )  # fmt: skip
    share = share_of(model, micro_batch, options, optimizer) if is_shared(model, options.target) else None
    compiled = Compiled(
        call=call, step=step, module=model, options=options, update=update, replicas=replicas, share=share
    )  # fmt: skip
    _ = compiled.stage_plan  # what cannot be cut so, or has too few micro-batches, is refused before anything changes
    if kept is None:
        compiled.require_fit()  # a kept step has passed this
        step_cache.save(options.cache_dir, key, step)
    return compiled


def _choices(
    arguments: Arguments, trained: Sequence[str], options: Options, optimizer: Optimizer | None
) -> list[object]:
    """What decides the capture besides the model and, where that is asked for, whether it fits."""
    choices: list[object] = [
        *describe(arguments.structure),
        *trained,
        options.constant_loss_scaling,
        hash_sources(*DECIDES),
    ]
    if options.strict:
        choices += [astuple(options.target), options.gradient_accumulation, options.replication_factor]
        choices += [
            options.shard_optimizer_state,
            options.gradient_divisor,
            options.max_grad_norm,
            getattr(optimizer, "accum_type", None),
        ]
        choices += [options.accumulation_dtype, options.optimizer_state_dtype]
        choices += [options.master_weights, options.stochastic_rounding]
        choices += _what_needs_state(optimizer)
        choices += [options.stages, options.schedule, options.recompute, options.matmul_proportion]
    return choices


def _what_needs_state(optimizer: Optimizer | None) -> list[object]:
    """An optimizer's kind and the settings that are on, such as momentum: they decide how much memory it takes."""
    if optimizer is None:
        return []
    return [
        type(optimizer),
        *(
            sorted(name for name, on in group.items() if name != "params" and on is not None and bool(on))
            for group in optimizer.param_groups
        ),
    ]
