"""The compiled step: a model, or a function, whose step is captured once for fixed shapes and called like it."""

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.engine import resume
from popgeo.engine.backend import Backend
from popgeo.engine.bound_step import BoundStep
from popgeo.engine.followed_step import FollowedStep
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas, ReplicaState
from popgeo.engine.shown_step import as_html, in_words
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe, StepPlan, plain_optimizer
from popgeo.forked import Lock


class CompiledStep:
    """A model, or a function, whose step is compiled once for fixed shapes; called like it.

    `popgeo.compile_step` and `popgeo.compile_forward` compile it for this computer; `popgeo.training_model`,
    `popgeo.inference_model` and `popgeo.ipu.compile` for a simulated machine too, which accounts for it in `report`.
    The first call compiles the step for the shapes it gets, unless `compile` has done so.

    Args:
        recipe: The step to compile, and how.
        replicas: Which replicas run here; all of this process when left out.
    """

    def __init__(self, recipe: Recipe, replicas: Replicas | None = None) -> None:
        self._step = FollowedStep(recipe, replicas)
        self._lock = Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call: `batch_factor` micro-batches of the options, an update per accumulation when training.

        `step(batch)` takes the arguments of a model of tensors from the batch, by name; others may be passed as well.

        Calls of several threads come one after the other. A change of the model since it was compiled is
        followed, as far as it can be seen: see the guide to the executor.

        Raises:
            ValueError: an argument differs from what the step was compiled for, named with both shapes or values.
        """
        with self._lock:
            return self._step.for_call(args, kwargs)(args, kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledStep":
        """Compiles the step for these arguments of a call without running it.

        Raises:
            DynamicShapeError: a shape depends on data.
            OutOfTileMemory: the machine is strict, and a tile of it needs more memory than it has.
            ValueError: no loss or several, or it is compiled already for other arguments.
        """
        with self._lock:
            bound = self._step.bound or self._step.compile(args, kwargs)
            bound.flatten(args, kwargs)
        return self

    def reset(self) -> None:
        """Forgets what was compiled; the next call may have other shapes.

        Weights, the optimizer's state, random numbers and the count of updates stay.
        """
        with self._lock:
            self._step.forget(self._step.recipe.modes)

    @property
    def model(self) -> nn.Module:
        """The module whose step this is; an empty one for a function."""
        return self._step.recipe.module

    @property
    def options(self) -> StepOptions:
        """How often a call repeats the step, what it returns, and what it was compiled for."""
        return self._step.recipe.options

    @property
    def backend(self) -> Backend:
        """What runs the step."""
        return self._step.recipe.backend

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled."""
        return self._step.bound is not None

    @property
    def calls(self) -> int:
        """How many calls there were since the step was compiled."""
        return self.bound.calls if self.is_compiled else 0

    @property
    def compile_seconds(self) -> float:
        """How long compiling took; 0 if nothing is compiled."""
        return self.bound.compile_seconds if self.is_compiled else 0.0

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
        """How the machine would run the step; None if it was compiled for this computer alone."""
        return self.bound.plan

    @property
    def report(self) -> Any:
        """The machine's account of a step: cycles, memory and plans there, and what this computer did for it.

        Costs are worked out when it is first asked for; nothing runs.

        Raises:
            ValueError: nothing is compiled, or there is no machine to account for it.
        """
        return self.bound.planned.report(self.bound.figures())

    @property
    def pipeline(self) -> Any:
        """The machine's account of the stages of a step.

        Raises:
            ValueError: nothing is compiled, there is no machine, or the step runs as a whole.
        """
        return self.bound.planned.pipeline

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss and how many updates it left out; None if it is constant, or nothing is compiled."""
        return self.bound.runner.loss_scale if self.is_compiled else None

    @property
    def update(self) -> Update | None:
        """The optimizer's update; None for a forward pass."""
        return self.bound.on_processor.update

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Takes the hyperparameters and the state of another optimizer of the same kind over the same parameters.

        Raises:
            ValueError: the step is a forward pass, or the optimizer does not fit.
        """
        if self._step.recipe.optimizer is None:
            raise ValueError("A forward pass has no optimizer; wrap the module with training_model to train it.")
        optimizer = plain_optimizer(optimizer)
        with self._lock:
            if self.is_compiled and self.update is not None:
                self.update.set_optimizer(optimizer)
            self._step.recipe = replace(self._step.recipe, optimizer=optimizer)

    def train(self, mode: bool = True) -> "CompiledStep":
        """Sets the mode of the module and of the step, which is captured again if it was compiled in another.

        Raises:
            ValueError: a step that trains is to evaluate.
        """
        if self._step.recipe.optimizer is not None and not mode:
            raise ValueError(
                "A training step updates the weights in each call, so it has no mode to evaluate in. For that compile "
                "the forward pass of the same model: popgeo.compile_forward(model.eval()), or popgeo.inference_model; "
                "it follows the weights. To train with layers in evaluation mode, call eval() of those."
            )
        with self._lock:
            self.model.train(mode)
            modes = dict.fromkeys(self.model.modules(), mode)
            if modes != self._step.recipe.modes:
                self._step.forget(modes)
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
        self._step.reset_buffers()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes weights, optimizer and random numbers to a file that is whole at any moment, also if killed meanwhile.

        Raises:
            ValueError: nothing is compiled.
        """
        with self._lock:
            content = {"model": self.model.state_dict(), **self.bound.on_processor.run_state()}
            if self._step.recipe.optimizer is not None:
                content["optimizer"] = self._step.recipe.optimizer.state_dict()
        resume.save_checkpoint(path, content)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what `save` wrote, before or after compiling.

        Raises:
            ValueError: the file is not such a checkpoint, of a model that has other weights, or of other replicas; or
                a GPU runs the step.
        """
        with self._lock:
            self._step.load(path)

    def run_state(self) -> dict[str, Any]:
        """Random numbers, buffers of replicas and the count of updates, for a checkpoint that holds the weights.

        Raises:
            ValueError: nothing is compiled.
        """
        with self._lock:
            return self._step.run_state(self.bound)

    def load_run_state(self, state: Mapping[str, Any]) -> None:
        """Continues with what `run_state` returned, before or after compiling.

        Raises:
            ValueError: it is the state of other replicas.
        """
        with self._lock:
            self._step.continue_from(state)

    @property
    def bound(self) -> BoundStep:
        """The step as it is compiled: how it is called, and what runs it.

        Raises:
            ValueError: nothing is compiled.
        """
        bound = self._step.bound
        if bound is None:
            raise ValueError("The step has not been compiled, or reset() has forgotten it; call it or .compile(...).")
        return bound

    def replica_states(self) -> Sequence[ReplicaState]:
        """Random numbers and buffers of each replica that runs here, as they are; change them in place."""
        return self.bound.on_processor.replica_states

    def __repr__(self) -> str:
        return in_words(type(self).__name__, self._step.recipe, self._step.bound)

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, self._step.recipe, self._step.bound)

    def __getattr__(self, name: str) -> Any:
        """What the step does not have, the module may have; methods that return the module return the step."""
        if name == "_step":  # not set yet, so there is nothing to ask
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
