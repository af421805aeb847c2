"""A model with a compiled step: called like the model, and what else can be asked of it."""

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.capture_step import capture_step
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.capture.pytree import Structure, describe, first_difference, flatten, same, templates, unflatten
from popgeo.engine import micro_batches
from popgeo.engine.checkpoint import load_checkpoint, restore_run, restore_weights, save_checkpoint, state_of
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_runner import StepRunner
from popgeo.ipu.compiled import Usage, report
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import Assessment, assess
from popgeo.ipu.tiles.measure_memory import OutOfTileMemory


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
        self._optimizer, self._learning_rate = optimizer, learning_rate
        self._signature = inspect.signature(model.forward)
        self._arguments: Structure | None = None
        self._pending: Mapping[str, Any] | None = None
        self._runner: StepRunner | None = None
        self._update: Update | None = None
        self._assessment: Assessment | None = None
        self._usage = Usage()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call: `Options.batch_factor` micro-batches, an update per accumulation when training.

        Raises:
            ValueError: an argument differs from what the model was compiled for, named with both shapes or values.
        """
        runner, tensors, structure = self._compiled_for(args, kwargs)
        with self._usage.of_a_call():
            results = runner.run(tensors)
        return unflatten(runner.step.result, results, list(templates(structure)))

    def __repr__(self) -> str:
        kind = "inference" if self._optimizer is None else "training"
        calls = f"{self._usage.calls:,} {'call' if self._usage.calls == 1 else 'calls'}"
        state = f"compiled, {calls}" if self.is_compiled else "not compiled yet"
        factor = self.options.batch_factor
        return f"CompiledModel({type(self.model).__name__}: {kind}, {state}, micro-batches a call: {factor})"

    def _repr_html_(self) -> str:
        shown = {"model": type(self.model).__name__, "weights": sum(p.numel() for p in self.model.parameters())}
        if self._optimizer is not None:
            shown |= {"optimizer": type(self._optimizer).__name__}
        shown |= {"micro-batches a call": self.options.batch_factor, "compiled": self.is_compiled}
        if self._runner is not None:
            shown |= {"operations": len(self.graph.ops), "calls": self._usage.calls}
            shown |= {"seconds": round(self._usage.run_seconds, 3)}
        table = {name: f"{value:,}" if isinstance(value, int | float) else value for name, value in shown.items()}
        return pd.Series(table, name=type(self).__name__).to_frame().to_html()

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledModel":
        """Compiles the step for these arguments without running it.

        Raises:
            DynamicShapeError: a shape depends on data.
            OutOfTileMemory: the options are strict and a tile needs more memory than it has.
            ValueError: no loss or several, or it is compiled already for other arguments.
        """
        self._compiled_for(args, kwargs)
        return self

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled."""
        return self._runner is not None

    @property
    def graph(self) -> OpGraph:
        """The operations of one micro-batch, forward and, when training, backward."""
        return self._require_compiled().step.graph

    @property
    def report(self) -> Report:
        """The account of a step: cycles, memory and plans on the target, and what this computer did for it.

        Costs are worked out when it is first asked for; nothing runs.

        Raises:
            ValueError: nothing is compiled yet.
        """
        runner = self._require_compiled()
        return report(runner, self._assess(runner.step), self._usage, self.options, self._update)

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Takes the hyperparameters and the state of another optimizer of the same kind over the same parameters.

        Raises:
            ValueError: the model is for inference, or the optimizer does not fit.
        """
        if self._optimizer is None:
            raise ValueError("An inference model has no optimizer; wrap the module with training_model to train it.")
        if self._update is not None:
            self._update.set_optimizer(optimizer)
        self._optimizer = optimizer

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights and buffers, in torch's own format."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces weights and buffers, the latter in every replica."""
        self.model.load_state_dict(state)
        if self._runner is not None:
            self._runner.reset_buffers()

    def copy_weights_to_host(self) -> None:
        """Brings the module's weights up to date; they share the compiled step's memory, so they always are."""
        self._require_compiled()

    def copy_weights_to_device(self) -> None:
        """Brings the compiled step up to date with the module's weights, also where their memory was exchanged.

        Raises:
            ValueError: nothing is compiled.
        """
        self._require_compiled().bind()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes weights, optimizer and random numbers to a file that is whole at any moment, also if killed meanwhile.

        Raises:
            ValueError: nothing is compiled.
        """
        save_checkpoint(path, state_of(self.model, self._optimizer, self._require_compiled(), self._update))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what `save` wrote, before or after compiling.

        Raises:
            ValueError: the file is no such checkpoint, or of a model that has other weights.
        """
        content = load_checkpoint(path)
        restore_weights(content, self.model, self._optimizer, path)
        if self._runner is None:
            self._pending = content
        else:
            restore_run(content, self._runner, self._update)

    def destroy(self) -> None:
        """Forgets the compiled step; weights and optimizer state stay."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.clone()
        self._runner = self._update = self._arguments = self._assessment = None

    def __getattr__(self, name: str) -> Any:
        """What the wrapper does not have, the module may have."""
        if name == "model":  # not set yet, so there is nothing to ask
            raise AttributeError(name)
        return getattr(self.model, name)

    def _require_compiled(self) -> StepRunner:
        if self._runner is None:
            raise ValueError("The model has not been compiled or has been destroyed; call it or .compile(...) first.")
        return self._runner

    def _compiled_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepRunner, list[Tensor], Structure]:
        """The compiled step, made now if there is none, the tensors to give it, and how they nested."""
        tensors, structure = flatten(dict(self._signature.bind(*args, **kwargs).arguments))
        if self._runner is None:
            self._compile(tensors, structure)
        assert self._arguments is not None
        if not same(self._arguments, structure):
            raise ValueError(
                f"{first_difference(self._arguments, structure)}. A compiled step has fixed shapes: give it what "
                "it was compiled for, or call destroy() and compile anew."
            )
        return self._require_compiled(), tensors, structure

    def _compile(self, tensors: list[Tensor], structure: Structure) -> None:
        start = time.perf_counter()
        replicas = Replicas.of_this_process(self.options.replication_factor)
        factor = self.options.steps_per_call * len(replicas.local)
        micro_batches.check_batch_dimension(structure, factor)
        micro, micro_structure = flatten(unflatten(structure, micro_batches.micro_batch(tensors, 0, factor)))
        trained = {p for group in self._optimizer.param_groups for p in group["params"]} if self._optimizer else set()
        choices: list[object] = list(describe(micro_structure))
        if self.options.strict:
            choices += [self.options.target, self.options.gradient_accumulation, self.options.replication_factor]
            choices += _what_needs_state(self._optimizer)
        step = capture_step(
            self.model,
            list(zip(micro_batches.names(structure), micro, strict=True)),
            lambda fakes: self._call_model(unflatten(micro_structure, fakes)),
            trained=[name for name, p in self.model.named_parameters() if p in trained and p.requires_grad],
            loss_scaling=self.options.loss_scaling,
            cache_dir=self.options.cache_dir,
            choices=choices,
            graph_data=list(templates(micro_structure)),
            check=self._require_fit if self.options.strict else None,
            show_progress=self.options.show_progress,
        )
        if self._optimizer is not None and self._update is None:
            self._update = self._make_update(self._optimizer, step.trained)
        replicas.share_weights([*self.model.parameters(), *self.model.buffers()])
        runner = StepRunner(step, self.model, self.options, self._update, replicas)
        if self._pending is not None:
            restore_run(self._pending, runner, self._update)
        self._runner, self._arguments, self._pending = runner, structure, None
        self._usage.compile_seconds = time.perf_counter() - start

    def _require_fit(self, step: CapturedStep) -> None:
        if self._optimizer is not None:
            self._update = self._make_update(self._optimizer, step.trained)
        try:
            self._assess(step).require_fit()
        except OutOfTileMemory:
            self._update = self._assessment = None
            raise

    def _assess(self, step: CapturedStep) -> Assessment:
        if self._assessment is None:
            update = None if self._update is None else self._update.capture()
            self._assessment = assess(
                step,
                self.options.target,
                update,
                micro_batches=self.options.gradient_accumulation,
                replicas=self.options.replication_factor,
            )
        return self._assessment

    def _make_update(self, optimizer: Optimizer, trained: Sequence[str]) -> Update:
        parameters = dict(self.model.named_parameters())
        return Update(optimizer, {name: parameters[name] for name in trained}, self.options, self._learning_rate)

    def _call_model(self, arguments: dict[str, Any]) -> Any:
        bound = self._signature.bind_partial()
        bound.arguments.update(arguments)
        return self.model(*bound.args, **bound.kwargs)


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
