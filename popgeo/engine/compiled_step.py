"""The compiled step: a model, or a function, whose step is captured once for fixed shapes and called like it."""

import functools
import inspect
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import ONE_AT_A_TIME
from popgeo.capture.op_graph import OpGraph
from popgeo.engine import checkpoint
from popgeo.engine.backend import Backend
from popgeo.engine.bound_step import NOTHING_ON_A_GPU, BoundStep, bind_step
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe, StepPlan
from popgeo.engine.step_runner import ReplicaState


class CompiledStep:
    """A model, or a function, whose step is compiled once for fixed shapes; called like it.

    `popgeo.compile_step` and `popgeo.compile_forward` compile it for this computer; `popgeo.training_model`,
    `popgeo.inference_model` and `popgeo.ipu.compile` for a simulated machine too, which accounts for it in `report`.
    The first call compiles the step for the shapes it gets, unless `compile` has done so.

    Args:
        recipe: What is compiled, and how.
        replicas: Which replicas run here; those of this process when left out.
    """

    def __init__(self, recipe: Recipe, replicas: Replicas | None = None) -> None:
        self._recipe, self._replicas = recipe, replicas
        self._pending: Mapping[str, Any] | None = None  # a checkpoint that waits for the step to be compiled
        self._bound: BoundStep | None = None
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call: `batch_factor` micro-batches of the options, an update per accumulation when training.

        Calls of several threads come one after the other. What has changed about the model since it was compiled is
        followed, as far as it can be seen: see the guide to the executor.

        Raises:
            ValueError: an argument differs from what the step was compiled for, named with both shapes or values.
        """
        with self._lock:
            bound = self._bound
            if bound is None:
                bound = self._compile(args, kwargs)
            elif not bound.watch.is_as_seen():
                bound = self._follow(bound, args, kwargs)
            return bound(args, kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledStep":
        """Compiles the step for these arguments of a call without running it.

        Raises:
            DynamicShapeError: a shape depends on data.
            OutOfTileMemory: the machine is strict, and a tile of it needs more memory than it has.
            ValueError: no loss or several, or it is compiled already for other arguments.
        """
        with self._lock:
            bound = self._bound or self._compile(args, kwargs)
            bound.flatten(args, kwargs)
        return self

    def reset(self) -> None:
        """Forgets what was compiled; the next call may have other shapes.

        Weights, the optimizer's state, random numbers and the count of updates stay.
        """
        with self._lock:
            for parameter in self.model.parameters():
                if self.backend is not Backend.CUDA:
                    parameter.data = parameter.data.clone()  # no longer a view of the step's memory
            if self._bound is not None:
                self._forget(self._bound, self._recipe.modes)

    @property
    def model(self) -> nn.Module:
        """The module whose step this is; an empty one for a function."""
        return self._recipe.module

    @property
    def options(self) -> StepOptions:
        """How often a call repeats the step, what it returns, and what it was compiled for."""
        return self._recipe.options

    @property
    def backend(self) -> Backend:
        """What runs the step."""
        return self._recipe.backend

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled."""
        return self._bound is not None

    @property
    def calls(self) -> int:
        """How many calls there were since the step was compiled."""
        return 0 if self._bound is None else self._bound.calls

    @property
    def compile_seconds(self) -> float:
        """How long compiling took; 0 where nothing is compiled."""
        return 0.0 if self._bound is None else self._bound.compile_seconds

    @property
    def captured(self) -> CapturedStep:
        """What runs: the operations of one micro-batch, and what they return and change.

        Raises:
            ValueError: nothing is compiled.
        """
        return self.bound.step

    @property
    def graph(self) -> OpGraph:
        """The operations of one micro-batch, forward and, when training, backward."""
        return self.captured.graph

    @property
    def plan(self) -> StepPlan | None:
        """How the machine would run the step; None where it was compiled for this computer alone."""
        return self.bound.plan

    @property
    def report(self) -> Any:
        """The machine's account of a step: cycles, memory and plans there, and what this computer did for it.

        Costs are worked out when it is first asked for; nothing runs.

        Raises:
            ValueError: nothing is compiled, or there is no machine to account for it.
        """
        return self._planned.report(self.bound.figures())

    @property
    def pipeline(self) -> Any:
        """The machine's account of the stages of a step.

        Raises:
            ValueError: nothing is compiled, there is no machine, or the step runs as a whole.
        """
        return self._planned.pipeline

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss and how many updates it left out; None where it is constant, or nothing is compiled."""
        return None if self._bound is None else self._bound.runner.loss_scale

    @property
    def update(self) -> Update | None:
        """The optimizer's update; None for a forward pass."""
        return self.bound.on_processor.update

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Takes the hyperparameters and the state of another optimizer of the same kind over the same parameters.

        Raises:
            ValueError: the step is a forward pass, or the optimizer does not fit.
        """
        if self._recipe.optimizer is None:
            raise ValueError("A forward pass has no optimizer; wrap the module with training_model to train it.")
        with self._lock:
            if self._bound is not None and self.update is not None:
                self.update.set_optimizer(optimizer)
            self._recipe = replace(self._recipe, optimizer=optimizer)

    def train(self, mode: bool = True) -> "CompiledStep":
        """Sets the mode of the module and of the step, which is captured anew where it was compiled in another.

        Raises:
            ValueError: a step that trains is to evaluate.
        """
        if self._recipe.optimizer is not None and not mode:
            raise ValueError(
                "A training step updates the weights in each call, so it has no mode to evaluate in. For that compile "
                "the forward pass of the same model: popgeo.compile_forward(model.eval()), or popgeo.inference_model; "
                "it follows the weights. To train with layers in evaluation mode, call eval() of those."
            )
        with self._lock:
            self.model.train(mode)
            modes = dict.fromkeys(self.model.modules(), mode)
            if self._bound is not None and modes != self._recipe.modes:
                self._forget(self._bound, modes)
            self._recipe = replace(self._recipe, modes=modes)
        return self

    def eval(self) -> "CompiledStep":
        """`train(False)`."""
        return self.train(False)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights and buffers, in torch's own format."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces weights and buffers, the latter in every replica."""
        self.model.load_state_dict(state)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Gives every replica the module's buffers, as they are now."""
        if self._bound is not None and self.backend is not Backend.CUDA:
            self._bound.on_processor.reset_buffers()
        elif self._pending is not None:
            self._pending = {**self._pending, "buffers": []}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes weights, optimizer and random numbers to a file that is whole at any moment, also if killed meanwhile.

        Raises:
            ValueError: nothing is compiled.
        """
        with self._lock:
            runner = self.bound.on_processor
            content = checkpoint.state_of(self.model, self._recipe.optimizer, runner.run_state())
        checkpoint.save_checkpoint(path, content)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what `save` wrote, before or after compiling.

        Raises:
            ValueError: the file is no such checkpoint, or of a model that has other weights, or of other replicas; or
                a GPU runs the step.
        """
        if self.backend is Backend.CUDA:
            raise ValueError(NOTHING_ON_A_GPU)
        content = checkpoint.load_checkpoint(path)
        with self._lock:
            checkpoint.require_replicas(content, self._replicas_here())
            checkpoint.restore_weights(content, self.model, self._recipe.optimizer, path)
            self._pending = content
            if self._bound is not None:
                self._go_on(self._bound)

    @property
    def bound(self) -> BoundStep:
        """The step as it is compiled: how it is called, and what runs it.

        Raises:
            ValueError: nothing is compiled.
        """
        if self._bound is None:
            raise ValueError(
                "The step has not been compiled, or reset() has forgotten it; call it or .compile(...) first."
            )
        return self._bound

    def replica_states(self) -> Sequence[ReplicaState]:
        """Random numbers and buffers of each replica that runs here, as they are; change them in place."""
        return self.bound.on_processor.replica_states

    def __repr__(self) -> str:
        kind = "forward" if self._recipe.optimizer is None else "training"
        parts = [f"{self._recipe.name}: {kind}", f"backend {self.backend.value}"]
        parts.append("not compiled yet" if self._bound is None else f"{self.calls:,} call{'s' * (self.calls != 1)}")
        parts.append(f"micro-batches a call: {self.options.batch_factor}")
        if self._bound is not None:
            parts.append(self._bound.runner.how_it_runs())
        if self._recipe.autocast is not None:
            parts.append(f"autocast {str(self._recipe.autocast).removeprefix('torch.')}")
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    def _repr_html_(self) -> str:
        shown = {"model": self._recipe.name, "weights": sum(p.numel() for p in self.model.parameters())}
        if self._recipe.optimizer is not None:
            shown |= {"optimizer": type(self._recipe.optimizer).__name__}
        shown |= {"micro-batches a call": self.options.batch_factor, "compiled": self.is_compiled}
        if self._bound is not None:
            shown |= {"operations": len(self.graph.ops), "calls": self.calls}
            if self.backend is not Backend.CUDA:  # where calls return before they are through
                shown |= {"seconds": round(self._bound.run_seconds, 3)}
        table = {name: f"{value:,}" if type(value) in (int, float) else value for name, value in shown.items()}
        return pd.Series(table, name=type(self).__name__).to_frame().to_html()

    def __getattr__(self, name: str) -> Any:
        """What the step does not have, the module may have; methods that return the module return the step."""
        if name == "_recipe":  # not set yet, so there is nothing to ask
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

    @property
    def _planned(self) -> StepPlan:
        plan = self.plan
        if plan is None:
            raise ValueError(
                "The step was compiled for this computer alone, so no machine accounts for it. Use "
                "popgeo.training_model, popgeo.inference_model or popgeo.ipu.compile, which compile it for one too."
            )
        return plan

    def _replicas_here(self) -> Replicas:
        """Those of this process, as they were dealt out or will be."""
        if self._bound is not None:
            return self._bound.on_processor.replicas
        return self._replicas or Replicas.of_this_process(self.options.replication_factor)

    def _compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """Compiles the step for such arguments; what is refused changes neither the model nor the optimizer."""
        replicas = self._replicas_here()
        if self._pending is not None:
            checkpoint.require_replicas(self._pending, replicas)
        bound = bind_step(self._recipe, Arguments.of(self._recipe.signature, args, kwargs), replicas)
        self._go_on(bound)
        self._bound = bound
        return bound

    def _follow(self, bound: BoundStep, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """Takes up what has changed about the model: memory that moved by binding, what was captured by compiling."""
        bound.flatten(args, kwargs)  # which refuses other shapes, as in any call
        with ONE_AT_A_TIME:  # another thread may be capturing the same model
            if not bound.watch.changes():
                bound.follow_memory()
                return bound
            self._forget(bound, bound.watch.modes())
        return self._compile(args, kwargs)

    def _forget(self, bound: BoundStep, modes: Mapping[nn.Module, bool]) -> None:
        """Forgets what was compiled; the next one goes on with its random numbers, and counts on from its updates."""
        self._recipe, self._bound = replace(self._recipe, modes=modes), None
        if self._pending is None:
            self._pending = {"replicas": list(self._replicas_here().local), **bound.runner.run_state()}

    def _go_on(self, bound: BoundStep) -> None:
        """Gives a compiled step the run that a checkpoint holds, if one was loaded."""
        if self._pending is not None:
            checkpoint.restore_run(self._pending, bound.runner)
            self._pending = None
