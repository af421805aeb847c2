"""A predictor that applies a trained model to graphs of any size, in batches of a few fixed shapes."""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import TypedDict, Unpack

from popgeo.capture.held_state import require_shapes
from popgeo.data.axes import Axis, Level
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.deploy.choose_shapes import choose_shapes, grown_shape, into_shapes
from popgeo.deploy.compile_program import ProgramMaker, backend_on
from popgeo.deploy.fixed_program import FixedProgram, as_predicted, names_taken
from popgeo.deploy.load_weights import load_weights
from popgeo.deploy.predictions import Predictions, to_records
from popgeo.deploy.processes import shared_out
from popgeo.deploy.read_graphs import GraphReader, named, opened, pieces, reader_of
from popgeo.deploy.run_batches import TRIED, run_batches, slots_used, warn_of_others
from popgeo.did_you_mean import names_arguments
from popgeo.engine.backend import Backend
from popgeo.engine.misuse import refuse_transforms
from popgeo.forked import Lock
from popgeo.plain_surroundings import plain_surroundings
from popgeo.progress import bar

_AT_ONCE = 1 << 15  # graphs of a dataset that are packed together
_OF_STREAM = 4096  # graphs of a stream that are read ahead


def _keeps(errors: str) -> bool:
    """Check whether errors of graphs are kept instead of raised."""
    if errors not in ("raise", "keep"):
        raise ValueError(f"errors is {errors!r}; pass 'raise' or 'keep'.")
    return errors == "keep"


class PredictorArguments(TypedDict, total=False):
    """Keyword arguments of `Predictor`."""

    sizes: FixedSizeOptions | Sequence[FixedSizeOptions] | None
    backend: Backend | str | None
    device: torch.device | str | None
    batch_size: float | None
    max_shapes: int
    forces: bool
    arguments: Mapping[str, Any] | None
    results: Sequence[str] | Mapping[str, str | Level | Axis]
    layout: LayoutChoices | None
    batch_invariant: bool


@names_arguments
class Predictor:
    """A predictor that packs graphs of any size into batches of a few fixed shapes, and compiles each shape once.

    Each argument of the model gets the attribute of the graphs with the same name, or a number such as `num_graphs`. If
    the only argument is not an attribute, such as `data`, it gets the whole batch. The model is copied, and predicts as
    in `model.eval()`. Results are tensors with one row per graph, node or edge; the number of rows decides the level.

    Args:
        model: The model.
        sizes: Shape of a batch, or several. Default: chosen from the first graphs.
        backend: `"cpu"`, popgeo's executor; `"inductor"`, torch's compiler; `"cuda"`, a GPU; `"none"`, no compilation.
            Default: `"cuda"` for a model or a `device` on a GPU, else `"cpu"`.
        device: Device that the model runs on. Default: the device of its weights.
        batch_size: Average number of real graphs in a batch, if shapes are chosen. Default: about two thousand nodes.
        max_shapes: Largest number of shapes, if they are chosen. Each further shape must save a twentieth of the slots.
        forces: Whether a model of energies returns `energy` and `forces`, the negative gradient by `pos`.
        arguments: Constant arguments of the model, such as `{"half_list": True}`.
        results: Names of the results of a model that returns a tuple; or the level of results whose number of rows is
            ambiguous, such as `{"charges": "node"}`.
        layout: Layout of batches.
        batch_invariant: Whether the results of a graph have the same bits in every batch; see `StepOptions`. Most
            models have such results anyway. Needs the backend `"cpu"`.

    Raises:
        ValueError: `batch_invariant` is set and the backend is not `"cpu"`, or `model` is not a module.

    Example:
        >>> from torch_geometric.data import Data
        >>> from popgeo.nn import GIN
        >>> graphs = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5)]
        >>> predictor = Predictor(GIN(4, 8, 2, out_channels=1, readout="sum"))
        >>> predictor(graphs)
        Predictions(3 graphs; out: [3, 1] of graphs)
        >>> predictor.num_compilations
        1
    """

    def __init__(
        self,
        model: nn.Module,
        sizes: FixedSizeOptions | Sequence[FixedSizeOptions] | None = None,
        backend: Backend | str | None = None,
        *,
        device: torch.device | str | None = None,
        batch_size: float | None = None,
        max_shapes: int = 3,
        forces: bool = False,
        arguments: Mapping[str, Any] | None = None,
        results: Sequence[str] | Mapping[str, str | Level | Axis] = (),
        layout: LayoutChoices | None = None,
        batch_invariant: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"model is a {type(model).__name__}; pass a torch.nn.Module, or open a file with popgeo.load(path)."
            )
        refuse_transforms()
        require_shapes(model)
        model = copy.deepcopy(model).eval().requires_grad_(False)
        found = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
        self.device = torch.device(device) if device is not None else found
        weights = next((one.dtype for one in model.parameters()), None)
        self.takes_float64 = hasattr(model, "neighbor_rule") or weights is torch.float64
        """Whether positions may be in float64."""
        chosen = backend_on(backend, self.device)
        if batch_invariant and chosen is not Backend.CPU:
            raise ValueError(f"batch_invariant needs backend='cpu', but the backend is {chosen and chosen.value!r}.")
        self._maker: ProgramMaker | None = ProgramMaker(
            model=as_predicted(model, forces).to(self.device),
            backend=chosen,
            batch_invariant=batch_invariant,
            device=self.device,
            layout=layout or LayoutChoices(),
            arguments=arguments or {},
            results=results,
        )
        self._begin([sizes] if isinstance(sizes, FixedSizeOptions) else list(sizes or ()))
        self._batch_size, self._max_shapes = batch_size, max_shapes

    @classmethod
    def of_programs(cls, programs: Sequence[FixedProgram], device: torch.device | str = "cpu") -> "Predictor":
        """Return a predictor for existing programs, such as the programs in a file. Its shapes cannot grow.

        Args:
            programs: One program per shape; their inputs and results have the same names.
            device: Device of their inputs.
        """
        made = cls.__new__(cls)
        made.device, made._maker = torch.device(device), None
        made._begin([program.sizes for program in programs])
        made.programs = dict(enumerate(programs))
        first = programs[0]
        made.takes_float64 = "pos" in first.inputs and first.inputs["pos"].dtype is torch.float64
        made._reader = reader_of(first)
        return made

    @classmethod
    def from_checkpoint(cls, path: str | Path, model: Any, **choices: Unpack[PredictorArguments]) -> "Predictor":
        """Return a predictor with weights from a file: a Lightning checkpoint or a `state_dict`.

        Args:
            path: The file. Nothing in it is executed if `model` is a module.
            model: The trained module or a part of it; or a class of `LightningModule`, which is then made with the
                settings in the checkpoint.
            choices: Further arguments of `Predictor`.

        Raises:
            ValueError: the file has no weights, or weights of a different model.
        """
        return cls(load_weights(Path(path), model), **choices)

    def _begin(self, shapes: Sequence[FixedSizeOptions]) -> None:
        self.shapes = list(shapes)
        self.programs: dict[int, FixedProgram] = {}
        self._reader: GraphReader | None = None
        self._lock = Lock()
        self._used: dict[str, np.ndarray] = {}
        self._left = TRIED
        self.num_compilations = 0

    def __call__(self, graphs: Any, *, errors: str = "raise", progress_bar: bool | None = None) -> Predictions:
        """Predict the results of all graphs, in the order of the graphs.

        In a group of `torch.distributed`, such as torchrun's, each process predicts a part of the graphs,
        and every process returns all results.

        Args:
            graphs: A dataset, a list or any iterable of graphs or of batches, a `FlatStore`, or a loader, whose order
                then counts. Up to some ten thousand graphs are in memory at a time. A graph may be a dictionary of
                tensors, `{"z": ..., "pos": ...}`; PyG is then not imported.
            errors: `"raise"`, or `"keep"`: `Predictions.errors` then has the error of each failed graph.
            progress_bar: Whether to show a bar if it lasts longer than a second. Default: at a terminal and in
                notebooks.

        Raises:
            ValueError: a graph failed, with its number; or the model cannot be compiled for these graphs.
        """
        keep, graphs = _keeps(errors), opened(graphs)
        return shared_out(graphs, lambda part, start: self._all(part, start, keep, progress_bar))

    def stream(self, graphs: Iterable[Any], *, errors: str = "raise", ahead: int = _OF_STREAM) -> Iterator[Any]:
        """Yield the results graph by graph. The iterable may be infinite.

        Args:
            graphs: The graphs.
            errors: `"raise"`, or `"keep"`, which yields `{"error": exception}` for a failed graph.
            ahead: Number of graphs that are read and packed at a time. A larger number means less padding.

        Yields:
            A dictionary of results for each graph. Results per graph have the shape [1, ...].
        """
        keep, start = _keeps(errors), 0
        for piece in pieces(graphs, ahead):
            predicted = self._piece(piece, start, keep)
            yield from to_records(predicted)
            start += predicted.num_graphs

    def _all(self, graphs: Any, start: int, keep: bool, progress_bar: bool | None) -> Predictions:
        """Predict the results of this process's graphs; `start` is the number of the first graph."""
        total = len(graphs) if hasattr(graphs, "__len__") else None
        parts = []
        with bar("predicting", "graphs", total=total, show=progress_bar) as shown:
            for piece in pieces(graphs, _AT_ONCE):
                parts.append(self._piece(piece, start, keep))
                start += parts[-1].num_graphs
                shown.update(parts[-1].num_graphs)
        return Predictions.concatenate(parts)

    @plain_surroundings()
    def _piece(self, graphs: Any, start: int, keep: bool) -> Predictions:
        """Predict the results of a list of graphs, or of a flat store."""
        refuse_transforms()
        reader = self._reader or self._first_reader(graphs)
        store, right, errors = reader.read(graphs, start, keep)
        if store is None:
            return Predictions(num_graphs=len(graphs), errors=errors)
        with self._lock:
            store, right = self._made_to_fit(store, right, start, keep, errors)
            packs = into_shapes(store, self.shapes)
            batches = [(self._program(i, store), of) for i, of in enumerate(packs) if len(of)]
            if self._left:
                self._left = warn_of_others(store, batches, self.device, self._left)
            for label, used in slots_used(store, self.shapes, packs).items():
                self._used[label] = self._used.get(label, 0) + used
        found = run_batches(store, batches, self.device, right, len(graphs))
        failed = {i: named(start + i, error) for i, error in found.errors.items()}
        if failed and not keep:
            raise failed[min(failed)] from found.errors[min(failed)]
        return replace(found, errors=dict(sorted((errors | failed).items())))

    def _first_reader(self, graphs: Any) -> GraphReader:
        """Return the reader that is used until the first program has been compiled."""
        assert self._maker is not None  # a predictor of programs has a reader
        some: Any = graphs[0] if isinstance(graphs, FlatStore) else next((g for g in graphs if hasattr(g, "keys")), {})
        return GraphReader(layout=self._maker.layout, names=names_taken(self._maker.model, some.keys()))

    def _made_to_fit(
        self, store: FlatStore, right: np.ndarray, start: int, keep: bool, errors: dict[int, Exception]
    ) -> tuple[FlatStore, np.ndarray]:
        """Return the graphs that fit a shape. Choose the shapes first if there are none, or enlarge the largest shape.

        Raises:
            ValueError: a graph is too large for programs of a file, and `keep` is False.
        """
        if not self.shapes:
            self.shapes = choose_shapes(store, self._batch_size, self._max_shapes)
        if store.is_hetero:
            self.shapes = [options.to_hetero(store.node_types, store.edge_types) for options in self.shapes]
        axes = store.size_axes
        fits = np.logical_or.reduce([(store.sizes <= options.limits(axes)).all(1) for options in self.shapes])
        if fits.all():
            return store, right
        large = np.flatnonzero(~fits)
        most = max(range(len(self.shapes)), key=lambda i: self.shapes[i].total_num_nodes)
        what = f"Graph {start + int(right[large[0]])} has " + ", ".join(
            f"{count:,} {axis.label}" for count, axis in zip(store.sizes[large[0]], axes, strict=True)
        )
        if self._maker is not None:
            larger = grown_shape(self.shapes[most], store.view(large))
            warnings.warn(f"{what}: more than {self.shapes[most]} holds, which grows to {larger}.", stacklevel=5)
            self.shapes[most] = larger
            self.programs.pop(most, None)
            return store, right
        for number in right[large].tolist():
            errors[number] = ValueError(
                f"Graph {start + number} is larger than the file's largest shape, {self.shapes[most]}. Export the "
                "model again with larger sizes."
            )
            if not keep:
                raise errors[number]
        return store.view(np.flatnonzero(fits)), right[fits]

    def _program(self, i: int, store: FlatStore) -> FixedProgram:
        """Return the program of a shape, which is compiled at the first call."""
        if i not in self.programs:
            assert self._maker is not None  # a predictor of programs has them all
            self.programs[i] = program = self._maker(self.shapes[i].with_rows_for(store), store)
            self.num_compilations += 1
            self._reader = self._reader or reader_of(program)
        return self.programs[i]

    @property
    def waste(self) -> dict[str, float]:
        """Share of padding in the nodes, edges and graphs of all batches so far."""
        return {label: float(1 - real / slots) for label, (real, slots) in self._used.items() if slots}

    def __repr__(self) -> str:
        waste = ", ".join(f"{share:.1%} of {label}" for label, share in self.waste.items())
        shapes = "; ".join(map(str, self.shapes)) or "no shape yet"
        padding = f"; padding: {waste}" if waste else ""
        return f"{type(self).__name__}({shapes}; {self.num_compilations} compiled{padding})"
