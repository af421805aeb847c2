"""Training and inference models that compile one step and run it at every call."""

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.ipu import batching
from popgeo.ipu.compiler.account import account
from popgeo.ipu.compiler.capture import Capture, capture
from popgeo.ipu.engine import Engine
from popgeo.ipu.options import Options, OutputMode, Reduction
from popgeo.ipu.report import Report
from popgeo.ipu.structure import Structure, first_difference, flatten, same, unflatten
from popgeo.ipu.update import Update


def training_model(
    model: nn.Module,
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    learning_rate: Callable[[int], float] | None = None,
) -> "CompiledModel":
    """Wraps a model so that a call runs forward, backward and the optimizer's update as one compiled step.

    The model returns its loss, alone or among other results; the first call compiles the step for the shapes it gets.

    Args:
        model: Its parameters and buffers are trained in place; call `model.train()` or `model.eval()` before.
        options: Device iterations, accumulation, replicas and what a call returns.
        optimizer: Any of `torch.optim` that needs no closure, over parameters of the model; SGD with a rate of 0.01 by
            default. Schedulers may change it between calls.
        learning_rate: The rate of each update, counted from 0, instead of the optimizer's own.

    Returns:
        The model to call like `model`.

    Raises:
        ValueError: the model is wrapped already, or the optimizer holds none of its parameters.

    Example:
        >>> class Line(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = nn.Parameter(torch.zeros(1))
        ...     def forward(self, x, y):
        ...         return (self.slope * x - y).square().mean()
        >>> line = Line()
        >>> step = training_model(line, optimizer=torch.optim.SGD(line.parameters(), lr=0.1))
        >>> x = torch.tensor([1.0, 2.0])
        >>> losses = [float(step(x, 3 * x)) for _ in range(20)]
        >>> round(losses[0], 2), round(losses[-1], 2), round(line.slope.item(), 2)
        (22.5, 0.0, 3.0)
    """
    chosen = options or Options()
    return CompiledModel(model, chosen, optimizer or torch.optim.SGD(model.parameters(), lr=0.01), learning_rate)


def inference_model(model: nn.Module, options: Options | None = None) -> "CompiledModel":
    """Wraps a model so that a call runs its compiled forward pass.

    Args:
        model: Shares its parameters, so it follows a training model of the same module.
        options: Device iterations, replicas and what a call returns.

    Returns:
        The model to call like `model`.

    Raises:
        ValueError: the options ask for gradient accumulation.

    Example:
        >>> linear = nn.Linear(3, 2).eval()
        >>> torch.equal(inference_model(linear)(torch.ones(4, 3)), linear(torch.ones(4, 3)))
        True
    """
    chosen = options or Options()
    if chosen.gradient_accumulation != 1:
        raise ValueError(
            f"Inference has no gradients to accumulate; set Options.gradient_accumulation to 1, not {chosen.gradient_accumulation}."
        )
    return CompiledModel(model, chosen, None, None)


class CompiledModel:
    """A model whose step is compiled once for fixed shapes; made by `training_model` and `inference_model`."""

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        optimizer: Optimizer | None,
        learning_rate: Callable[[int], float] | None,
    ) -> None:
        if isinstance(model, CompiledModel):
            raise ValueError(
                "The model is wrapped already; wrap the module itself, or call destroy() on the first wrapper."
            )
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"Expected a torch.nn.Module, got {type(model).__name__}; use popgeo.ipu.compile for a function."
            )
        self.model, self.options = model, options
        self._optimizer, self._learning_rate = optimizer, learning_rate
        self._signature = inspect.signature(model.forward)
        self._arguments: Structure | None = None
        self._capture: Capture | None = None
        self._engine: Engine | None = None
        self._update: Update | None = None
        self._compile_seconds = self._run_seconds = 0.0
        self._calls = 0
        self._addresses: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one call: `Options.batch_factor` micro-batches, an update per accumulation when training.

        Raises:
            ValueError: an argument differs from what the model was compiled for, named with both shapes or values.
        """
        tensors, structure = self._take_apart(args, kwargs)
        if self._engine is None:
            self._compile(tensors, structure)
        assert self._arguments is not None
        if not same(self._arguments, structure):
            raise ValueError(
                f"{first_difference(self._arguments, structure)}. A compiled step has fixed shapes: give it what it was "
                "compiled for, or call destroy() and compile anew."
            )
        start = time.perf_counter()
        if self._addresses != [tensor.data_ptr() for tensor in self._state().values()]:
            self._load()
        result = self._run(tensors)
        self._run_seconds += time.perf_counter() - start
        self._calls += 1
        return result

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledModel":
        """Compiles the step for these arguments without running it.

        Raises:
            DynamicShapeError: a shape depends on data.
            ValueError: no loss or several, or it is compiled already for other arguments.
        """
        tensors, structure = self._take_apart(args, kwargs)
        if self._engine is None:
            self._compile(tensors, structure)
        return self

    @property
    def is_compiled(self) -> bool:
        """Whether the step is compiled."""
        return self._engine is not None

    @property
    def report(self) -> Report:
        """The account of the step: operations by family, FLOPs, bytes and wall time.

        Raises:
            ValueError: nothing is compiled yet.
        """
        if self._engine is None or self._capture is None:
            raise ValueError("Nothing is compiled yet; call the model or .compile(...) first.")
        state = {id(t): t for t in [*self.model.parameters(), *self.model.buffers()]}
        held = [*state.values(), *(self._update.tensors() if self._update else ())]
        return Report(
            target=self.options.target,
            families=account(self._engine.graph),
            captured_ops=len(self._capture.graph.ops),
            state_bytes=sum(t.nbytes for t in held),
            buffer_bytes=self._engine.buffer_bytes,
            compile_seconds=self._compile_seconds,
            calls=self._calls,
            steps=self._calls * self.options.batch_factor,
            run_seconds=self._run_seconds,
        )

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
        """Replaces weights and buffers."""
        self.model.load_state_dict(state)

    def destroy(self) -> None:
        """Forgets the compiled step; weights and optimizer state stay."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.clone()
        self._engine = self._capture = self._update = self._arguments = None

    def _take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], Structure]:
        return flatten(dict(self._signature.bind(*args, **kwargs).arguments))

    def _compile(self, tensors: list[Tensor], structure: Structure) -> None:
        start = time.perf_counter()
        factor = self.options.batch_factor
        batching.check_batch_dimension(structure, factor)
        micro, micro_structure = flatten(unflatten(structure, batching.micro_batch(tensors, 0, factor)))
        trained = {p for group in self._optimizer.param_groups for p in group["params"]} if self._optimizer else set()
        step = capture(
            self.model,
            list(zip(batching.names(structure), micro, strict=True)),
            lambda fakes: self._call_model(unflatten(micro_structure, fakes)),
            trained=[name for name, p in self.model.named_parameters() if p in trained and p.requires_grad],
            loss_scaling=self.options.loss_scaling,
        )
        if self._optimizer is not None:
            parameters = dict(self.model.named_parameters())
            self._update = Update(
                self._optimizer,
                {name: parameters[name] for name in step.trained},
                max_grad_norm=self.options.max_grad_norm,
                learning_rate=self._learning_rate,
            )
        self._capture, self._arguments = step, structure
        self._load()
        self._compile_seconds = time.perf_counter() - start

    def _state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {f"parameter:{name}": p for name, p in self.model.named_parameters()}
        return state | {f"buffer:{name}": b for name, b in self.model.named_buffers()}

    def _load(self) -> None:
        """Binds the engine to the memory in which the module's weights are now."""
        assert self._capture is not None
        if self._update is not None:
            self._update.follow_parameters()
        state = self._state()
        self._engine = Engine(self._capture.graph, state)
        self._addresses = [tensor.data_ptr() for tensor in state.values()]

    def _call_model(self, arguments: dict[str, Any]) -> Any:
        bound = self._signature.bind_partial()
        bound.arguments.update(arguments)
        return self.model(*bound.args, **bound.kwargs)

    def _run(self, tensors: list[Tensor]) -> Any:
        assert self._engine is not None and self._capture is not None
        options, factor, count = self.options, self.options.batch_factor, self._capture.num_results
        mode = options.output_mode or (OutputMode.FINAL if self._update else OutputMode.ALL)
        assert isinstance(mode, OutputMode)
        results = batching.Results(mode, options, options.replication_factor)
        joined = options.gradient_accumulation * options.replication_factor
        divisor = options.loss_scaling * (joined if options.reduction is Reduction.MEAN else 1)
        for step in range(options.steps_per_call):
            for replica in range(options.replication_factor):
                index = step * options.replication_factor + replica
                made = self._engine.run(batching.micro_batch(tensors, index, factor))
                if results.wants(step):
                    results.add(step, replica, [t for t in made[:count] if t is not None])
                if self._update is not None:
                    self._update.accumulate(self._capture.trained, made[count:], first=index % joined == 0)
            if self._update is not None and (step + 1) % options.gradient_accumulation == 0:
                self._update.apply(divisor)
        return unflatten(self._capture.result, results.join())
