"""A model with a compiled step: called like the model, and what else can be asked of it."""

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.held_state import in_modes
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.checkpoint import (
    load_checkpoint,
    require_replicas,
    restore_run,
    restore_weights,
    save_checkpoint,
    state_of,
)
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.replicas import Replicas, is_sharded
from popgeo.ipu.compile_step import compile_step
from popgeo.ipu.compiled import Compiled
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.systems.pipeline import Pipeline


class CompiledModel:
    """A model whose step is compiled once for fixed shapes; made by `training_model` and `inference_model`."""

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimizer: Optimizer | None,
        learning_rate: Callable[[int], float] | None,
    ) -> None:
        self.model, self.options = model, options
        self._modes = {module: module.training for module in model.modules()}
        self._optimizer, self._learning_rate = optimizer, learning_rate
        self._signature = inspect.signature(model.forward)
        self._pending: Mapping[str, Any] | None = None
        self._compiled: Compiled | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call: `Options.batch_factor` micro-batches, an update per accumulation when training.

        Raises:
            ValueError: an argument differs from what the model was compiled for, named with both shapes or values.
        """
        compiled = self._compiled or self._compile(args, kwargs)
        return compiled(args, kwargs)

    def __repr__(self) -> str:
        kind = "inference" if self._optimizer is None else "training"
        state = "not compiled yet"
        if self._compiled is not None:
            calls = self._compiled.usage.calls
            state = f"compiled, {calls:,} {'call' if calls == 1 else 'calls'}"
        runs = "" if self._compiled is None else self._compiled.how_it_runs
        factor = f"micro-batches a call: {self.options.batch_factor}{f', {runs}' if runs else ''}"
        return f"CompiledModel({type(self.model).__name__}: {kind}, {state}, {factor})"

    def _repr_html_(self) -> str:
        shown = {"model": type(self.model).__name__, "weights": sum(p.numel() for p in self.model.parameters())}
        if self._optimizer is not None:
            shown |= {"optimizer": type(self._optimizer).__name__}
        shown |= {"micro-batches a call": self.options.batch_factor, "compiled": self.is_compiled}
        if self._compiled is not None:
            usage = self._compiled.usage
            shown |= {"operations": len(self.graph.ops), "calls": usage.calls, "seconds": round(usage.run_seconds, 3)}
        table = {name: f"{value:,}" if isinstance(value, int | float) else value for name, value in shown.items()}
        return pd.Series(table, name=type(self).__name__).to_frame().to_html()

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledModel":
        """Compiles the step for these arguments without running it.

        Raises:
            DynamicShapeError: a shape depends on data.
            OutOfTileMemory: the options are strict and a tile needs more memory than it has.
            ValueError: no loss or several, or it is compiled already for other arguments.
        """
        compiled = self._compiled or self._compile(args, kwargs)
        compiled.call.flatten(args, kwargs)
        return self

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled."""
        return self._compiled is not None

    @property
    def compiled(self) -> Compiled:
        """The step behind the model's signature.

        Raises:
            ValueError: nothing is compiled.
        """
        if self._compiled is None:
            raise ValueError("The model has not been compiled or has been destroyed; call it or .compile(...) first.")
        return self._compiled

    @property
    def graph(self) -> OpGraph:
        """The operations of one micro-batch, forward and, when training, backward."""
        return self.compiled.step.graph

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss and how many updates it left out; None where it is constant.

        Raises:
            ValueError: nothing is compiled yet.
        """
        update = self.compiled.update
        return None if update is None else update.scale

    @property
    def report(self) -> Report:
        """The account of a step: cycles, memory and plans on the target, and what this computer did for it.

        It is that of one IPU, or of one IPU's share of shards; where a step runs in stages, `pipeline` is theirs.

        Costs are worked out when it is first asked for; nothing runs.

        Raises:
            ValueError: nothing is compiled yet.
        """
        return self.compiled.report()

    @property
    def pipeline(self) -> Pipeline:
        """What the stages of a step cost over several IPUs, as `popgeo.ipu.pipeline` has it; what runs is cut alike.

        Raises:
            ValueError: nothing is compiled yet, or the options ask for no stages.
        """
        plan = self.compiled.stage_plan
        if plan is None:
            raise ValueError("The step runs as a whole; set Options.stages, for example to 2, for a pipeline.")
        return plan.pipeline

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Takes the hyperparameters and the state of another optimizer of the same kind over the same parameters.

        Raises:
            ValueError: the model is for inference, or the optimizer does not fit.
        """
        if self._optimizer is None:
            raise ValueError("An inference model has no optimizer; wrap the module with training_model to train it.")
        if self._compiled is not None and self._compiled.update is not None:
            self._compiled.update.set_optimizer(optimizer)
        self._optimizer = optimizer

    def train(self, mode: bool = True) -> "CompiledModel":
        """Sets the module's mode, and as long as nothing is compiled that of the step; the step has it from then on."""
        self.model.train(mode)
        self._modes = {module: module.training for module in self.model.modules()}
        return self

    def eval(self) -> "CompiledModel":
        """`train(False)`."""
        return self.train(False)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights and buffers, in torch's own format."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces weights and buffers, the latter in every replica."""
        self.model.load_state_dict(state)
        if self._compiled is not None:
            self._compiled.runner.reset_buffers()

    def copy_weights_to_host(self) -> None:
        """Brings the module's weights up to date; they share the compiled step's memory, so they always are."""
        _ = self.compiled  # raises where there is nothing

    def copy_weights_to_device(self) -> None:
        """Brings the compiled step up to date with the module's weights, also where their memory was exchanged.

        Raises:
            ValueError: nothing is compiled.
        """
        self.compiled.runner.bind()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes weights, optimizer and random numbers to a file that is whole at any moment, also if killed meanwhile.

        Raises:
            ValueError: nothing is compiled.
        """
        compiled = self.compiled
        save_checkpoint(path, state_of(self.model, self._optimizer, compiled.runner, compiled.update))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what `save` wrote, before or after compiling.

        Raises:
            ValueError: the file is no such checkpoint, or of a model that has other weights, or of other replicas.
        """
        content = load_checkpoint(path)
        require_replicas(content, self._replicas())
        restore_weights(content, self.model, self._optimizer, path)
        if self._compiled is None:
            self._pending = content
        else:
            restore_run(content, self._compiled.runner, self._compiled.update)

    def destroy(self) -> None:
        """Forgets the compiled step; weights and optimizer state stay."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.clone()
        self._compiled = None

    def __getattr__(self, name: str) -> Any:
        """What the wrapper does not have, the module may have."""
        if name == "model":  # not set yet, so there is nothing to ask
            raise AttributeError(name)
        return getattr(self.model, name)

    def _compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Compiled:
        """Compiles the step for such arguments, and gives it weights and random numbers.

        Where anything is refused on the way, model and optimizer are as they were.
        """
        start = time.perf_counter()
        replicas = self._replicas()
        if self._pending is not None:
            pending, self._pending = self._pending, None  # a checkpoint that is refused is not asked for again
            require_replicas(pending, replicas)
            self._pending = pending
        arguments = Arguments.of(self._signature, args, kwargs)
        with in_modes(self.model, self._modes):
            compiled = compile_step(
                self.model, arguments, self.options, replicas, self._optimizer, learning_rate=self._learning_rate
            )
        shared = [p for p in self.model.parameters() if not is_sharded(p)]
        replicas.share_weights([*shared, *self.model.buffers()])
        runner = compiled.runner  # from here on weights lie where the step wants them
        if self._pending is not None:
            restore_run(self._pending, runner, compiled.update)
        self._compiled, self._pending = compiled, None
        compiled.usage.compile_seconds = time.perf_counter() - start
        return compiled

    def _replicas(self) -> Replicas:
        """Those of this process, as they were dealt out or will be."""
        if self._compiled is not None:
            return self._compiled.replicas
        return Replicas.of_this_process(self.options.replication_factor)
