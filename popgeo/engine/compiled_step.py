"""The compiled step: a model or a function that is captured once for fixed shapes and called like the original."""

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import ONE_AT_A_TIME
from popgeo.capture.op_graph import OpGraph
from popgeo.engine import resume
from popgeo.engine.backend import Backend
from popgeo.engine.bind_step import bind_step
from popgeo.engine.bound_step import NOTHING_ON_A_GPU, BoundStep, table_of
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.misuse import explain_failed_batch, refuse_no_grad, refuse_transforms
from popgeo.engine.model_watch import modes_now
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas, ReplicaState
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe, StepPlan, plain_optimizer
from popgeo.forked import Lock
from popgeo.plain_surroundings import plain_surroundings
from popgeo.progress import announced


class CompiledStep:
    """A model or a function that runs as a compiled step of fixed shapes; it is called like the original.

    `popgeo.compile_step` and `popgeo.compile_forward` compile for this computer. `popgeo.training_model`,
    `popgeo.inference_model` and `popgeo.ipu.compile` compile for a simulated machine too, whose account is `report`.
    The first call compiles the step for the shapes of its arguments, unless `compile` has done so. A later call
    compiles it again if the model has changed. Random numbers, buffers of replicas and the count of updates continue.
    Methods and attributes that need a compiled step raise a ValueError until there is one.

    Args:
        recipe: The step to compile, and the choices for it.
        replicas: The replicas that run in this process. Default: `Replicas.of_this_process`.
    """

    def __init__(self, recipe: Recipe, replicas: Replicas | None = None) -> None:
        self._recipe, self._replicas = recipe, replicas
        self._lock = Lock()
        self._bound: BoundStep | None = None
        self._run_state: Mapping[str, Any] | None = None  # a run state to restore once the step is compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call: `batch_factor` micro-batches of the options, and an update after each accumulation in training.

        `step(batch)` takes the arguments of a model of tensors from the batch, by name; a call may add others.

        Calls of several threads run one after the other. A call follows visible changes of the model; the guide to
        the executor lists them.

        Raises:
            ValueError: an argument differs from the compiled step's, and the message gives both shapes or values; a
                training step is called within `no_grad`; or a transform of torch surrounds the call.
        """
        with self._lock:
            refuse_transforms()
            if self._recipe.optimizer is not None:
                refuse_no_grad()
            bound = self._bound
            given = None if bound is None else bound.flatten(args, kwargs)
            if bound is None or given is None or not bound.serves(given[0]):
                self._drop()
                bound = self._compile(args, kwargs)
                given = bound.flatten(args, kwargs)
            return bound(*given)

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledStep":
        """Compile the step for these arguments of a call, without running it.

        Raises:
            DynamicShapeError: a shape depends on data.
            OutOfTileMemory: the machine is strict, and a tile of it needs more memory than it has.
            ValueError: the model returns no loss or several, or the step is compiled for other arguments.
        """
        with self._lock:
            bound = self._bound or self._compile(args, kwargs)
            bound.flatten(args, kwargs)
        return self

    def reset(self) -> None:
        """Drop the compiled step, so that the next call may have other shapes.

        Weights, the optimizer's state, random numbers and the count of updates stay.
        """
        with self._lock:
            self._drop()

    @property
    def model(self) -> nn.Module:
        """The module that the step runs; an empty module for a function."""
        return self._recipe.module

    @property
    def options(self) -> StepOptions:
        """The options that the step was compiled with."""
        return self._recipe.options

    @property
    def backend(self) -> Backend:
        """The backend that runs the step."""
        return self._recipe.backend

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled."""
        return self._bound is not None

    @property
    def bound(self) -> BoundStep:
        """The captured step with its memory and its runner."""
        if self._bound is None:
            raise ValueError("The step has not been compiled, or reset() has dropped it; call it or .compile(...).")
        return self._bound

    @property
    def calls(self) -> int:
        """The number of calls since the step was compiled."""
        return self.bound.calls if self.is_compiled else 0

    @property
    def compile_seconds(self) -> float:
        """The seconds that compiling took; 0 if nothing is compiled."""
        return self.bound.compile_seconds if self.is_compiled else 0.0

    @property
    def captured(self) -> CapturedStep:
        """The operations of one micro-batch, with the results that they return and the tensors that they change."""
        return self.bound.step

    @property
    def graph(self) -> OpGraph:
        """The operations of one micro-batch: the forward pass and, in training, the backward pass."""
        return self.captured.graph

    @property
    def plan(self) -> StepPlan | None:
        """The machine's plan of the step; None if it was compiled for this computer alone."""
        return self.bound.plan

    @property
    def report(self) -> Any:
        """The machine's account of a step: cycles, memory and plans, and the time and memory of this computer.

        The first access computes the costs; nothing runs. A step without a machine raises a ValueError.
        """
        return self.bound.planned.report(self.bound.figures())

    @property
    def pipeline(self) -> Any:
        """The machine's account of a step's stages; a step that runs as a whole raises a ValueError."""
        return self.bound.planned.pipeline

    def how_it_runs(self) -> str:
        """Return a text: the native calls of a micro-batch, the operations that torch runs between them, the update.

        Example:
            >>> import torch, popgeo
            >>> step = popgeo.compile_forward(nn.Linear(3, 2).eval(), torch.ones(4, 3))
            >>> print(step.how_it_runs().partition(" in ")[0])
            1 native call
        """
        return self.bound.runner.listing()

    @property
    def loss_scale(self) -> LossScale | None:
        """The dynamic scale of the loss, with its skipped updates; None if it is constant or nothing is compiled."""
        return self.bound.runner.loss_scale if self.is_compiled else None

    @property
    def update(self) -> Update | None:
        """The optimizer's update; None for a forward pass."""
        return self.bound.on_processor.update

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Use the hyperparameters and the state of another optimizer of the same kind over the same parameters.

        Raises:
            ValueError: the step is a forward pass, or the optimizer does not fit.
        """
        if self._recipe.optimizer is None:
            raise ValueError("A forward pass has no optimizer; wrap the module with training_model to train it.")
        optimizer = plain_optimizer(optimizer)
        with self._lock:
            if self.is_compiled and self.update is not None:
                self.update.set_optimizer(optimizer)
            self._recipe = replace(self._recipe, optimizer=optimizer)

    def train(self, mode: bool = True) -> "CompiledStep":
        """Set the mode of the module and of the step; a step that was compiled in the other mode is compiled again.

        Raises:
            ValueError: `mode` is False for a training step.
        """
        if self._recipe.optimizer is not None and not mode:
            raise ValueError(
                "A training step updates the weights in each call, so it cannot evaluate. To evaluate, compile the "
                "forward pass of the same model, popgeo.compile_forward(model.eval()) or popgeo.inference_model; it "
                "follows the weights. To train with some layers in evaluation mode, call eval() of these layers."
            )
        with self._lock:
            self.model.train(mode)
            modes = dict.fromkeys(self.model.modules(), mode)
            if modes != self._recipe.modes:
                self._drop()
                self._recipe = replace(self._recipe, modes=modes)
        return self

    def eval(self) -> "CompiledStep":
        """Call `train(False)`."""
        return self.train(False)

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the weights and buffers, in torch's own format."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the weights, and the buffers of every replica."""
        self.model.load_state_dict(state)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Copy the module's buffers to every replica."""
        if self._bound is not None and self.backend is not Backend.CUDA:
            self._bound.on_processor.reset_buffers()
        elif self._run_state is not None:
            self._run_state = {**self._run_state, "buffers": []}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, optimizer and random numbers to a file; a process killed meanwhile leaves the old file."""
        with self._lock:
            content = {"model": self.model.state_dict(), **self.bound.on_processor.run_state()}
            if self._recipe.optimizer is not None:
                content["optimizer"] = self._recipe.optimizer.state_dict()
        resume.save_checkpoint(path, content)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue the run that `save` wrote, before or after compiling.

        Raises:
            ValueError: the file is not a checkpoint of this model and these replicas, or a GPU runs the step.
        """
        with self._lock:
            if self.backend is Backend.CUDA:
                raise ValueError(NOTHING_ON_A_GPU)
            content = resume.load_checkpoint(path)
            resume.require_replicas(content, self._replicas_here())
            resume.restore_weights(content, self.model, self._recipe.optimizer, path)
            self._continue_from(content)

    def run_state(self) -> dict[str, Any]:
        """Return random numbers, buffers of replicas and the count of updates: a checkpoint without the weights."""
        with self._lock:
            return self.bound.on_processor.run_state()

    def load_run_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `run_state` of the same replicas, before or after compiling."""
        with self._lock:
            self._continue_from(state)

    def replica_states(self) -> Sequence[ReplicaState]:
        """Return the live state (generator and buffers) of each replica in this process."""
        return self.bound.on_processor.replica_states

    @plain_surroundings()
    def _compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """Compile the step for the arguments of a call; rejected arguments change neither model nor optimizer."""
        refuse_transforms()
        recipe = self._recipe = replace(self._recipe, modes=modes_now(self.model, self._recipe.modes))
        replicas = self._replicas_here()
        if self._run_state is not None:
            resume.require_replicas(self._run_state, replicas)
        arguments = Arguments.of(recipe.signature, args, kwargs)
        line = f"popgeo: compiling {recipe.name} for its first call with these shapes"
        with (
            explain_failed_batch(recipe.signature, (*args, *kwargs.values())),
            announced(line, None if recipe.options.show_progress else False),
        ):
            bound = bind_step(recipe, arguments, replicas)
        if self._run_state is not None:
            resume.restore_run(self._run_state, bound.runner)
            self._run_state = None
        self._bound = bound
        return bound

    def _drop(self) -> None:
        """Drop the compiled step, and keep its run state for the next one."""
        bound, self._bound = self._bound, None
        if bound is not None and self._run_state is None:
            with ONE_AT_A_TIME:  # a capture in another thread may have changed torch's generator for a moment
                self._run_state = bound.runner.run_state()

    def _continue_from(self, content: Mapping[str, Any]) -> None:
        """Restore random numbers and counts from a run state, now or once the step is compiled."""
        resume.require_replicas(content, self._replicas_here())
        if self.options.random_seed is None:  # now, since the caller may draw before the step does
            resume.restore_torchs_generator(content)
        if self._bound is None:
            self._run_state = content
        else:
            resume.restore_run(content, self._bound.runner)

    def _replicas_here(self) -> Replicas:
        if self._bound is not None:
            return self._bound.on_processor.replicas
        trains = self._recipe.optimizer is not None
        return self._replicas or Replicas.of_this_process(self.options.replication_factor, trains)

    def __repr__(self) -> str:
        recipe, bound = self._recipe, self._bound
        purpose = "forward" if recipe.optimizer is None else "training"
        parts = [f"{recipe.name}: {purpose}", f"backend {recipe.backend.value}"]
        parts.append("not compiled yet" if bound is None else f"{bound.calls:,} call{'s' * (bound.calls != 1)}")
        parts += [f"micro-batches per call: {recipe.options.batch_factor}"]
        parts += [] if bound is None else [bound.runner.how_it_runs()]
        parts += [] if recipe.autocast is None else [f"autocast {str(recipe.autocast).removeprefix('torch.')}"]
        return f"{type(self).__name__}({', '.join(filter(None, parts))})"

    def _repr_html_(self) -> str:
        return table_of(self._recipe, self._bound).rename(type(self).__name__).to_frame().to_html()

    def __getattr__(self, name: str) -> Any:
        """Return the module's attribute; a method of the module that returns the module returns the step."""
        if name == "_recipe":  # before __init__ has set it, no module is known
            raise AttributeError(name)
        found, model = getattr(self.model, name), self.model
        if not inspect.ismethod(found) or found.__self__ is not model:
            return found

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            return self if made is model else made

        return call

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"A {type(self).__name__} is bound to memory of this process, so it can be neither pickled nor copied. "
            "Pass on the model, or its state_dict(), and compile that; save() and load() keep a run."
        )
