"""A LightningModule with a compiled step; Lightning's counters, checkpoints, schedulers and loggers work as usual.

Lightning optimizes automatically: its closure calls `training_step`, which runs forward, backward and update as one
compiled step; `optimizer_step` then only runs the closure. This module needs the extra `trainers`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from popgeo.capture.pytree import flatten
from popgeo.engine.backend import Backend
from popgeo.engine.compile_step import as_call, compile_forward, compile_step
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.resume import restore_torchs_generator
from popgeo.engine.step_options import StepOptions

_OF_CALLBACKS = ("on_after_backward", "on_before_optimizer_step")
_IN_THE_STEP = {*_OF_CALLBACKS, "backward", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad"}
_KEY = "popgeo"


class CompiledModule(LightningModule):
    """A LightningModule that trains a model by its compiled step.

    A subclass defines `configure_optimizers`, and `validation_step` if it validates; there `self(batch)` runs the
    compiled forward pass. One call of `training_step` is one update. The step clips gradients as
    `Trainer(gradient_clip_val=)` says. `accumulate_grad_batches=` raises an error, since
    `StepOptions(gradient_accumulation=)` joins micro-batches of one item of the loader. Each process of
    `strategy="ddp"` runs one replica. There are no gradients outside the step, so a subclass or a callback with a hook
    for gradients raises an error.

    Args:
        model: Model that returns its results and the loss, as for `popgeo.compile_step`.
        options: Options of the step, such as loss scaling. Default: `StepOptions()`.
        backend: Backend of the step. Default: `"cuda"` if the module is on a GPU, otherwise `"cpu"`.

    Example:
        >>> class Line(nn.Linear):
        ...     def forward(self, x, y):
        ...         return (super().forward(x) - y).square().mean()
        >>> class Lit(CompiledModule):
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> module = Lit(Line(1, 1))  # Trainer(max_epochs=3).fit(module, loader)
    """

    def __init__(
        self, model: nn.Module, options: StepOptions | None = None, backend: Backend | str | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self._options, self._backend = options or StepOptions(), backend
        self._step: tuple[Optimizer, CompiledStep] | None = None
        self._forwards: dict[bool, CompiledStep] = {}  # forward passes in training mode (True) and evaluation mode
        self._resumed: Mapping[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        replaced = sorted(name for name in _IN_THE_STEP if getattr(cls, name) is not getattr(CompiledModule, name))
        if replaced:
            raise TypeError(
                f"{cls.__name__} defines {', '.join(replaced)}, but gradients exist only within the compiled step. "
                "Leave it out; the step itself clips and scales: CompiledModule(model, StepOptions(max_grad_norm=1.0))."
            )

    def step(self, batch: Any) -> Any:
        """Run forward, backward and the optimizer's update, for use in your own `training_step`.

        Args:
            batch: A batch of graphs, or a tuple or dictionary of tensors.

        Returns:
            The model's results.

        Raises:
            ValueError: A compiled step does not support a setting of the Trainer; the message names the remedy.
        """
        args, kwargs = as_call(tuple(batch) if isinstance(batch, list) else batch)
        if self.trainer.fit_loop._skip_backward:  # StochasticWeightAveraging recomputes the statistics of norms
            return self._without_update(*args, **kwargs)
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        if self._step is None or self._step[0] is not optimizer:
            self._step = optimizer, self._compiled(optimizer)
        clips = self.trainer.gradient_clip_val or self._options.max_grad_norm
        if clips != self._step[1].options.max_grad_norm:
            _refuse(f"gradient_clip_val has become {clips} after the first update; set it before fit()")
        if self.trainer.accumulate_grad_batches != 1:
            raise ValueError(
                f"accumulate_grad_batches is {self.trainer.accumulate_grad_batches}, set in the Trainer or by a "
                "callback. A compiled step joins micro-batches of one item: pass options=StepOptions("
                "gradient_accumulation=...) to the CompiledModule and to the FixedSizeDataLoader."
            )
        return self._step[1](*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Run one update and return its loss, which is logged as `train_loss`."""
        results = self.step(batch)
        assert self._step is not None  # self.step has compiled it
        loss = flatten(results)[0][self._step[1].captured.loss or 0]
        self.log("train_loss", loss.mean(), prog_bar=True)
        return loss.mean()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's results; in evaluation mode the compiled forward pass runs and accepts a batch alone."""
        if self.training:
            return self.model(*args, **kwargs)
        return self._without_update(*args, **kwargs)

    def _without_update(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled forward pass in the model's current mode, training or evaluation."""
        if self.training not in self._forwards:
            replicas = dist.get_world_size() if dist.is_initialized() else 1
            options = StepOptions(replication_factor=replicas)
            self._forwards[self.training] = compile_forward(self.model, backend=self._backend, options=options)
        return self._forwards[self.training](*args, **kwargs)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Run the closure; its compiled step updates the weights."""
        optimizer_closure()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Do nothing, since the step has run the backward pass.

        Raises:
            ValueError: The loss was not computed by the compiled step.
        """
        if loss.requires_grad:
            raise ValueError(
                "training_step returns a loss with a gradient, which was computed outside of the compiled step, so no "
                "weight would follow it. Return the loss that self.step(batch) returns, and add all terms of the loss "
                "within the model's forward."
            )

    def on_train_start(self) -> None:
        """Restore the loader's position in the epoch and torch's random numbers from the checkpoint.

        Lightning loses the position if it counts the batches first.
        """
        run = self._resumed_run()
        if run is None:
            return
        loader: Any = self.trainer.train_dataloader
        if run and self._options.random_seed is None:
            restore_torchs_generator(run)
        if self._resumed.get("loader") is not None:
            loader.load_state_dict(self._resumed["loader"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of each process's random numbers and the loader's position in the epoch."""
        if self._step is None or not self._step[1].is_compiled:
            return
        on_gpu = self._step[1].backend is Backend.CUDA  # its state is in the weights and the optimizer
        runs: list[Any] = [{} if on_gpu else self._step[1].run_state()] * self.trainer.world_size
        if len(runs) > 1:
            dist.all_gather_object(runs, runs[0])
        loader: Any = self.trainer.train_dataloader
        place = loader.state_dict() if hasattr(loader, "state_dict") else None
        checkpoint[_KEY] = {"runs": runs, "loader": place}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the entries of `on_save_checkpoint` until the step is compiled."""
        self._resumed = checkpoint.get(_KEY, {})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_step": None, "_forwards": {}}  # callbacks copy modules

    def _compiled(self, optimizer: Optimizer) -> CompiledStep:
        """Compile the step for this Trainer, or raise a ValueError for a setting that it does not support."""
        trainer, options = self.trainer, self._options
        clips, iterations = trainer.gradient_clip_algorithm, options.device_iterations
        if not self.automatic_optimization:
            _refuse("automatic_optimization is False; leave it at True, so that Lightning counts the updates")
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            _refuse(f"strategy is {type(trainer.strategy).__name__}; use one device or 'ddp'")
        if trainer.precision == "16-mixed":
            _refuse("precision is '16-mixed'; use 'bf16-mixed', or options=StepOptions(loss_scaling='dynamic')")
        if clips not in (None, "norm"):
            _refuse(f"gradient_clip_algorithm is {clips.value!r}; use 'norm'")
        if iterations != 1:
            _refuse(f"device_iterations is {iterations}; Lightning counts one update per item of the loader, so use 1")
        for callback in trainer.callbacks:
            hooks = [
                name
                for name in _OF_CALLBACKS
                if getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)
            ]
            if hooks:
                _refuse(
                    f"{type(callback).__name__} defines {', '.join(hooks)}, but gradients exist only within the step; "
                    "optimizer.register_step_pre_hook(...) sees them, and on_train_batch_end comes after each update"
                )
        if trainer.gradient_clip_val:
            options = replace(options, max_grad_norm=float(trainer.gradient_clip_val))
        replicas = max(options.replication_factor, trainer.world_size)
        raises = options.floating_point_exceptions or torch.is_anomaly_enabled()
        options = replace(options, replication_factor=replicas, floating_point_exceptions=raises)
        step = compile_step(self.model, optimizer, backend=self._backend, options=options)
        if step.backend is Backend.CUDA and isinstance(trainer.strategy.model, DistributedDataParallel):
            trainer.strategy.model.require_backward_grad_sync = False  # the step itself adds up gradients
        if run := self._resumed_run():
            with torch.random.fork_rng(devices=()):  # on_train_start has already restored torch's random numbers
                step.load_run_state(run)
        return step

    def _resumed_run(self) -> Mapping[str, Any] | None:
        """Return this process's state in the checkpoint that `fit` continues from; None without a checkpoint."""
        runs = self._resumed.get("runs", ()) if self.trainer.ckpt_path is not None else ()
        return runs[self.trainer.global_rank] if len(runs) == self.trainer.world_size else None


def _refuse(what: str) -> NoReturn:
    raise ValueError(f"The compiled step cannot run under this Trainer: {what}.")
