"""Utilities of PopTorch Geometric for models: a fixed number of rows, and training compared with eager PyTorch."""

import copy
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from popgeo.compat import poptorch
from popgeo.compat.poptorch.optim.optimizers import Adam


def set_aggregation_dim_size(model: nn.Module, dim_size: int) -> None:
    """Set a fixed number of output rows for every message passing layer of a model.

    Args:
        model: Model, changed in place.
        dim_size: Number of rows of aggregated messages, at least the nodes of a batch.

    Example:
        >>> from torch_geometric.nn import GraphConv
        >>> layer = GraphConv(1, 1, aggr="max")
        >>> set_aggregation_dim_size(layer, 3)
        >>> layer(torch.ones(3, 1), torch.tensor([[0], [1]])).shape
        torch.Size([3, 1])
    """

    def with_dim_size(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return {**inputs[-1], "dim_size": dim_size}

    for module in model.modules():
        if isinstance(module, MessagePassing):
            module.register_aggregate_forward_pre_hook(with_dim_size)


class TrainingStepper:
    """Trainer of two copies of a model, one eager and one compiled, that checks that they stay equal.

    Args:
        model: Model that returns a result and its loss. It stays unchanged.
        lr: Learning rate.
        optimizer: Class of both optimizers. Default: PopTorch's Adam.
        options: `poptorch.Options` of the compiled copy.
        rtol: Maximum relative difference. Default: that of `torch.testing.assert_close`.
        atol: Maximum absolute difference. Default: that of `torch.testing.assert_close`.
        enable_fp_exception: Whether NaN or infinity in the compiled copy is an error.
        equal_nan: Whether NaN equals NaN.
    """

    def __init__(
        self, model: nn.Module, lr: float = 0.001, optimizer: Callable[..., Any] | None = None, options: Any = None,
        rtol: float | None = None, atol: float | None = None, enable_fp_exception: bool = True,
        equal_nan: bool = False,
    ) -> None:  # fmt: skip
        optimizer = Adam if optimizer is None else optimizer
        model.train()
        self.lr, self.rtol, self.atol, self.equal_nan = lr, rtol, atol, equal_nan
        self.enable_fp_exception = enable_fp_exception
        self.options = poptorch.Options() if options is None else options
        if enable_fp_exception:
            self.options.Precision.enableFloatingPointExceptions(True)
        self.cpu_model, self.ipu_model = copy.deepcopy(model), copy.deepcopy(model)
        self.optimizer = optimizer(self.cpu_model.parameters(), lr=lr)
        own = optimizer(self.ipu_model.parameters(), lr=lr)
        self.training_model = poptorch.trainingModel(self.ipu_model, options=self.options, optimizer=own)
        self.inference_model = poptorch.inferenceModel(self.ipu_model, options=self.options.clone())
        self.check_parameters()

    def run(self, num_steps: int, batch: Sequence[Any], ipu_batch: Sequence[Any] | None = None) -> None:
        """Train both copies, and compare results, losses and parameters after each step.

        Args:
            num_steps: Number of steps.
            batch: Arguments of the model.
            ipu_batch: Arguments of the compiled copy. Default: `batch`. If results have different lengths, only the
                common first rows are compared.

        Raises:
            AssertionError: The copies differ.
        """
        for _ in range(num_steps):
            expected, actual = self.cpu_step(batch), self.ipu_step(batch if ipu_batch is None else ipu_batch)
            for own, other, name in zip(actual, expected, ("Output", "loss"), strict=True):
                if ipu_batch is not None and own.dim():
                    own, other = own[: len(other)], other[: len(own)]
                self.assert_close(actual=own, expected=other, id=name)
            self.check_parameters()

    def run_inference(self, batch: Sequence[Any], ipu_batch: Sequence[Any] | None = None) -> None:
        """Compare the results of both copies in evaluation mode.

        Raises:
            AssertionError: The results differ.
        """
        self.cpu_model.eval()
        self.ipu_model.eval()
        with torch.no_grad():
            expected = self.cpu_model(*batch)
        actual = self.inference_model(*(batch if ipu_batch is None else ipu_batch))
        self.assert_close(actual=actual, expected=expected, id="Inference")
        self.cpu_model.train()
        self.ipu_model.train()

    def cpu_step(self, batch: Sequence[Any]) -> tuple[Any, Any]:
        """Run one eager step, and return the result and the loss."""
        self.optimizer.zero_grad()
        out, loss = self.cpu_model(*batch)
        loss.backward()
        self.optimizer.step()
        return out, loss

    def ipu_step(self, batch: Sequence[Any], copy_weights: bool = True) -> tuple[Any, Any]:
        """Run one compiled step, and return the result and the loss."""
        out, loss = self.training_model(*batch)
        if copy_weights:
            self.training_model.copyWeightsToHost()
        return out, loss

    def check_parameters(self) -> None:
        """Compare the parameters of both copies.

        Raises:
            AssertionError: The parameters differ.
        """
        own = dict(self.ipu_model.named_parameters())
        for name, expected in self.cpu_model.named_parameters():
            self.assert_close(actual=own[name], expected=expected, id=name)

    def assert_close(self, actual: Any, expected: Any, id: str) -> None:
        """Check that two values are close; `id` names them in the error.

        Raises:
            AssertionError: The values differ.
        """
        close: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol, "equal_nan": self.equal_nan}
        torch.testing.assert_close(actual, expected, msg=lambda text: f"{id} was not equal:\n\n{text}\n", **close)

    def benchmark(self, num_steps: int, batch: Sequence[Any], devices: Sequence[str] = ("ipu",)) -> dict[str, float]:
        """Return the seconds of some steps, after a warm-up step.

        Args:
            num_steps: Number of steps.
            batch: Arguments of the model.
            devices: `"ipu"` for the compiled copy, `"cpu"` for the eager copy.

        Returns:
            `ipu_time` and `cpu_time`.

        Raises:
            ValueError: A device has another name.
        """
        devices = [devices] if isinstance(devices, str) else devices
        steps: dict[str, Callable[[], Any]] = {
            "ipu": lambda: self.ipu_step(batch, copy_weights=False),
            "cpu": lambda: self.cpu_step(batch),
        }
        if odd := [device for device in devices if device not in steps]:
            raise ValueError(f"devices contains {odd[0]!r}; only 'ipu' and 'cpu' are allowed.")
        for device in devices:
            steps[device]()
        return {f"{device}_time": timeit.timeit(steps[device], number=num_steps) for device in devices}
