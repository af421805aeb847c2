"""The backends that run compiled steps, and the options and devices that each of them supports."""

from collections.abc import Iterable
from enum import Enum

import torch
from torch import nn

from popgeo.engine.step_options import StepOptions


class Backend(Enum):
    """The executor of a compiled step."""

    CPU = "cpu"
    """This library's executor."""
    INDUCTOR = "inductor"
    """torch's compiler, on the processor, which compiles the captured operations."""
    CUDA = "cuda"
    """A GPU, which replays the whole step as one CUDA graph."""


_NOT_ON_A_GPU = (
    "random_seed", "accumulation_dtype", "optimizer_state_dtype", "master_weights", "stochastic_rounding",
    "shard_optimizer_state", "cache_dir",
)  # fmt: skip


def devices_of(model: nn.Module) -> set[torch.device]:
    """Return the devices of a model's parameters and buffers."""
    return {tensor.device for tensor in (*model.parameters(), *model.buffers())}


def backend_of(name: Backend | str | None, devices: Iterable[torch.device] = ()) -> Backend:
    """Return the backend of a name. None chooses the backend for a model on these devices.

    Raises:
        ValueError: no backend has this name.

    Example:
        >>> backend_of("inductor"), backend_of(None, [torch.device("cuda:1")])
        (<Backend.INDUCTOR: 'inductor'>, <Backend.CUDA: 'cuda'>)
    """
    if name is None:
        return Backend.CUDA if any(device.type == "cuda" for device in devices) else Backend.CPU
    try:
        return Backend(name)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in Backend)
        given = repr(name) if isinstance(name, str) else f"a {type(name).__name__}; several examples are one tuple"
        raise ValueError(f"backend is {given}; it is one of {allowed}.") from None


def require_served(backend: Backend, options: StepOptions) -> None:
    """Check that a backend supports the options.

    Raises:
        ValueError: the backend does not support some of the options; the message names them.
    """
    if backend is Backend.CPU:
        return
    on_gpu = backend is Backend.CUDA
    asked = ["floating_point_exceptions", "batch_invariant", *(_NOT_ON_A_GPU if on_gpu else ["replication_factor"])]
    names = [name for name in asked if getattr(options, name) != getattr(StepOptions(), name)]
    names += ["a loss_scaling that is not constant"] if on_gpu and options.constant_loss_scaling is None else []
    if names:
        runs = "A step on a GPU (backend='cuda')" if on_gpu else f"backend={backend.value!r}"
        instead = "move the model to the processor by model.cpu()" if on_gpu else "use backend='cpu'"
        raise ValueError(
            f"{runs} does not support {', '.join(names)}. Leave it out, or {instead}"
            f"{'; torch.manual_seed seeds a GPU' if 'random_seed' in names else ''}."
        )


def device_of(model: nn.Module, backend: Backend) -> torch.device:
    """Return the device on which a model's step runs.

    Raises:
        ValueError: torch finds no such device, or the model is on another one.
    """
    devices = devices_of(model)
    wanted = "cuda" if backend is Backend.CUDA else "cpu"
    if backend is Backend.CUDA and not torch.cuda.is_available():
        reason = "this build of torch is without CUDA" if torch.version.cuda is None else "the driver shows none"
        raise ValueError(f"torch finds no CUDA device: {reason}. Use backend='cpu' or backend='inductor'.")
    if len(devices) > 1 or any(device.type != wanted for device in devices):
        found = ", ".join(sorted(map(str, devices)))
        other = "" if wanted == "cuda" else "; without backend=, compile_step and compile_forward run it on its GPU"
        raise ValueError(
            f"The model is on {found}, and backend={backend.value!r} runs on {wanted}. Call "
            f"model.to({wanted!r}) before the optimizer is made{other}."
        )
    return next(iter(devices), torch.device(wanted))
