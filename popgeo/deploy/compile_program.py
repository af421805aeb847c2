"""Compiles a model for batches of one size."""

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
from popgeo.deploy.fixed_program import FixedModel, FixedProgram, axes_of_results, call_of, input_name
from popgeo.engine.backend import Backend, backend_of
from popgeo.engine.compile_step import compile_forward


def backend_on(name: Backend | str | None, device: torch.device) -> Backend | None:
    """What compiles a model on a device; None if nothing does, for `"none"`.

    Raises:
        ValueError: there is no such backend, or it does not run there.

    Example:
        >>> backend_on(None, torch.device("cpu"))
        <Backend.CPU: 'cpu'>
    """
    if name == "none":
        return None
    backend = backend_of(name or ("cuda" if device.type == "cuda" else "cpu"))
    if (backend is Backend.CUDA) != (device.type == "cuda"):
        raise ValueError(f"backend={backend.value!r} does not run on {device}. Pass device= or another backend.")
    return backend


@dataclass(frozen=True, kw_only=True)
class ProgramMaker:
    """Makes programs of one model.

    Args:
        model: The model, in the mode that it predicts in.
        backend: What compiles it; None if nothing does.
        device: Where.
        layout: How batches are laid out.
        arguments: What some arguments of the model are given in every call.
        results: Names of the results of a model that returns a tuple; or for each name what its rows belong to.
    """

    model: nn.Module
    backend: Backend | None
    device: torch.device
    layout: LayoutChoices
    arguments: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[str] | Mapping[str, str | Level | Axis] = ()

    def __call__(self, sizes: FixedSizeOptions, store: FlatStore) -> FixedProgram:
        """The program for batches of a size, of graphs like the graphs of `store`.

        Raises:
            ValueError: the model needs what the graphs do not have, or the level of its results is not clear.
            DynamicShapeError: a shape depends on data.
        """
        laid = for_all_graphs(lay_out(store, sizes, self.layout), store)
        call = call_of(self.model, laid, arguments=self.arguments, results=tuple(self.results))
        fixed = FixedModel(self.model, call).eval()
        memory = BatchMemory(laid, 1)  # of a batch of padding alone
        Filler(store, laid)(torch.arange(0).numpy(), torch.zeros(2, dtype=torch.int64).numpy(), memory.tensors)
        example = dict(zip(map(input_name, laid.slots), memory.items[0], strict=True))
        example = {name: example[name].to(self.device) for name in call.inputs}
        run = compiled_by(self.backend, fixed)
        given = self.results if isinstance(self.results, Mapping) else {}
        axes = axes_of_results(run(*example.values()), laid, given)
        inputs = {name: tensor.to("meta") for name, tensor in example.items()}
        layout = replace(self.layout, levels=levels_of(store.attributes, self.layout.levels, keeps_doubt=False))
        return FixedProgram(run=run, inputs=inputs, sizes=sizes, axes=axes, layout=layout, model=fixed)


def compiled_by(backend: Backend | str | None, model: Any) -> Callable[..., Any]:
    """What runs a model that takes tensors alone; the model itself if nothing is to compile it."""
    return torch.no_grad()(model) if backend in (None, "none") else compile_forward(model, backend=backend)
