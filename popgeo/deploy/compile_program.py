"""Compiling a model for batches of one size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from popgeo.data.axes import Axis, Level, levels_of
from popgeo.data.batch_layout import LayoutChoices, for_all_graphs, lay_out
from popgeo.data.compiled_fill import Filler
from popgeo.data.cut import BatchMemory
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.deploy.fixed_program import FixedModel, FixedProgram, axes_of_results, call_of, input_name, names_taken
from popgeo.engine.backend import Backend, backend_of
from popgeo.engine.compile_step import compile_forward
from popgeo.engine.step_options import StepOptions


def backend_on(name: Backend | str | None, device: torch.device) -> Backend | None:
    """Return the backend that compiles a model on a device; None for `"none"`.

    Raises:
        ValueError: the backend does not exist, or does not run on the device.

    Example:
        >>> backend_on(None, torch.device("cpu"))
        <Backend.CPU: 'cpu'>
    """
    if name == "none":
        return None
    backend = backend_of(name, [device])
    if (backend is Backend.CUDA) != (device.type == "cuda"):
        raise ValueError(f"backend={backend.value!r} does not run on {device}. Pass device= or another backend.")
    return backend


@dataclass(frozen=True, kw_only=True)
class ProgramMaker:
    """A builder of programs of one model for different batch sizes.

    Args:
        model: The model, in the mode for prediction.
        backend: Compiles the model; None leaves it uncompiled.
        device: Device of the model and its inputs.
        layout: Layout of batches.
        arguments: Constant arguments of the model.
        results: Names of the results of a model that returns a tuple; or the level of the rows of each result.
        batch_invariant: Whether results have the same bits in every batch; see `StepOptions`.
    """

    model: nn.Module
    backend: Backend | None
    device: torch.device
    layout: LayoutChoices
    arguments: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[str] | Mapping[str, str | Level | Axis] = ()
    batch_invariant: bool = False

    def __call__(self, sizes: FixedSizeOptions, store: FlatStore) -> FixedProgram:
        """Return the program for batches of one size, for graphs with the attributes of `store`.

        Raises:
            ValueError: the model needs an attribute that the graphs lack, or the level of a result is unclear.
            DynamicShapeError: a shape depends on data.
        """
        laid = for_all_graphs(lay_out(store, sizes, self.layout), store)
        call = call_of(self.model, laid, arguments=self.arguments, results=tuple(self.results))
        fixed = FixedModel(self.model, call).eval()
        memory = BatchMemory(laid, 1)  # of a batch of padding
        Filler(store, laid)(torch.arange(0).numpy(), torch.zeros(2, dtype=torch.int64).numpy(), memory.tensors)
        example = dict(zip(map(input_name, laid.slots), memory.items[0], strict=True))
        example = {name: example[name].to(self.device) for name in call.inputs}
        run = compiled_by(self.backend, fixed, StepOptions(batch_invariant=self.batch_invariant))
        given = self.results if isinstance(self.results, Mapping) else {}
        axes = axes_of_results(run(*example.values()), laid, given)
        inputs = {name: tensor.to("meta") for name, tensor in example.items()}
        layout = replace(self.layout, levels=levels_of(store.attributes, self.layout.levels, keeps_doubt=False))
        more: Any = {"names": names_taken(self.model, {one.name for one in store.attributes})}
        more["cutoff"] = getattr(getattr(self.model, "neighbor_rule", None), "cutoff", None)
        return FixedProgram(run=run, inputs=inputs, sizes=sizes, axes=axes, layout=layout, model=fixed, **more)


def compiled_by(backend: Backend | str | None, model: Any, options: StepOptions | None = None) -> Callable[..., Any]:
    """Return the compiled model, or the model itself if `backend` is None."""
    if backend in (None, "none"):
        return torch.no_grad()(model)
    return compile_forward(model, backend=backend, options=options)
