"""The memory of a step before it runs, compiled and eager, and the largest batch that fits in a given memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo import largest_graph
from popgeo.capture.arguments import Arguments, BatchArguments
from popgeo.capture.held_state import in_modes
from popgeo.capture.pytree import is_graph_data
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.engine.compile_step import as_call, require_module
from popgeo.engine.planned_step import BytesByKind, compiled_use, eager_use
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe
from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.quantity import bytes_of, quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The memory of a step by kind, compiled by popgeo and in eager torch, at the moment of the most bytes.

    Python, torch and the dataset need memory, too, which does not depend on the batch and is not part of these figures.

    Attributes:
        title: The model, the purpose of the step, and its batch.
        compiled: Bytes of the compiled step.
        eager: Bytes of the eager step.
    """

    title: str
    compiled: BytesByKind
    eager: BytesByKind

    def to_frame(self) -> "pd.DataFrame":
        """Return the bytes as a table with a row per kind, and the columns `compiled` and `eager`."""
        import pandas as pd

        return pd.DataFrame({"compiled": asdict(self.compiled), "eager": asdict(self.eager)}).rename_axis("kind")

    def plot(self, *, limit: str | float | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw the bytes of each kind, compiled and eager.

        Args:
            limit: A memory such as `"12 GB"`, drawn as a dashed line. Default: no line.
            ax: Axes to draw on. Default: a new figure.
        """
        from popgeo.plots import memory_by_kind

        return memory_by_kind(self.to_frame(), limit=None if limit is None else bytes_of(limit), ax=ax)

    def __str__(self) -> str:
        kinds = asdict(self.compiled).items()
        rows = [(name.replace("_", " "), nbytes, getattr(self.eager, name)) for name, nbytes in kinds]
        rows.append(("together", self.compiled.peak, self.eager.peak))
        lines = [f"{name:<15}{quantity(one, 'B'):>10}{quantity(other, 'B'):>11}" for name, one, other in rows]
        return "\n".join([self.title, f"{'':<15}{'compiled':>10}{'eager':>11}", *lines])

    __repr__ = __str__


def memory(
    model: nn.Module,
    sizes: Any,
    optimizer: Optimizer | None = None,
    *,
    example: Any = None,
    forces: bool = False,
    options: StepOptions | None = None,
    autocast: torch.dtype | None = None,
) -> StepMemory:
    """Return the memory that a step needs, compiled and eager, without running it.

    The step is captured for these shapes, and its memory is planned as `compile_step` plans it. The eager step runs on
    tensors without values, which torch frees as it frees others. The model and the optimizer stay unchanged.

    Args:
        model: The model. To train, it returns its loss, as for `compile_step`.
        sizes: The sizes of a batch; or the arguments of a call, as `example_batch` of `compile_step`.
        optimizer: An optimizer over the model's parameters. Default: none, for a prediction in evaluation mode.
        example: A graph with the attributes of the dataset, such as its largest graph; or a function that returns the
            arguments of a call from the sizes. Default: the model's own `example_batch(sizes)`, as
            `popgeo.potentials` has it, or an atom with `z` and `pos`.
        forces: Whether a model of energies returns forces, too, as in `popgeo.Predictor`.
        options: Options of the step. If a call has several micro-batches, `sizes` is a batch of the loader. Default:
            `StepOptions()`.
        autocast: Type of the forward pass; see `compile_step`.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: the model takes attributes that the example does not have, or `compile_step` would raise.

    Example:
        >>> from popgeo.nn import SchNet
        >>> model = SchNet(hidden_channels=16, num_filters=16, num_interactions=2)
        >>> found = memory(model, FixedSizeOptions(num_nodes=200, num_edges=0, num_graphs=12))
        >>> found.compiled.peak < found.eager.peak
        True
        >>> print(str(found).splitlines()[0])
        SchNet, prediction of a batch of 200 nodes, 0 edges, 12 graphs
    """
    function = require_module(model)
    if isinstance(sizes, FixedSizeOptions) and options is not None and options.batch_factor > 1:
        raise ValueError(
            f"A call has {options.batch_factor} micro-batches, but the sizes are of one micro-batch. Pass a batch of a "
            "loader with options=options in place of the sizes."
        )
    args, kwargs = _call_of(model, sizes, example)
    if forces:
        if optimizer is not None:
            raise ValueError("forces=True is for predictions. To train on forces, pass a model that returns its loss.")
        from popgeo.deploy.fixed_program import as_predicted

        function = as_predicted(model, forces)
        signature: Any = function.signature
        args, kwargs = BatchArguments(signature)(args, kwargs)
    recipe = _recipe_of(function, optimizer, options, autocast)
    try:
        arguments = Arguments.of(recipe.signature, args, kwargs)
    except ValueError as error:
        raise ValueError(f"{error} Or pass example=graph, with a graph of the dataset.") from None
    with in_modes(function, recipe.modes):
        compiled, step = compiled_use(recipe, arguments)
        eager = eager_use(recipe, arguments, step)
    purpose = "prediction" if optimizer is None else f"training with {type(optimizer).__name__}"
    return StepMemory(
        title=f"{type(model).__name__}, {purpose}{' of forces' * forces} of {_described(sizes)}",
        compiled=compiled,
        eager=eager,
    )


def _recipe_of(
    function: nn.Module,
    optimizer: Optimizer | None,
    options: StepOptions | None = None,
    autocast: torch.dtype | None = None,
) -> Recipe:
    """Return the recipe of a step; predictions are in evaluation mode."""
    modes = dict.fromkeys(function.modules(), False) if optimizer is None else {}
    chosen = options or StepOptions(show_progress=False)
    return Recipe(function=function, optimizer=optimizer, options=chosen, autocast=autocast, modes=modes)


def _call_of(model: nn.Module, sizes: Any, example: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call with these sizes."""
    if not isinstance(sizes, FixedSizeOptions):
        return as_call(sizes)
    if example is None:
        example = getattr(model, "example_batch", None)
    if example is not None and not is_graph_data(example):
        return as_call(example(sizes))
    return as_call(_padding(sizes) if example is None else FixedSizeCollater(sizes, add_masks_to_batch=True)([example]))


def _padding(sizes: FixedSizeOptions) -> Any:
    """Return a batch with one atom, whose graphs may have any size."""
    from torch_geometric.data import Data

    atom = Data(z=torch.ones(1, dtype=torch.int64), pos=torch.zeros(1, 3), edge_index=torch.empty(2, 0).long())
    batch = FixedSizeCollater(sizes, add_masks_to_batch=True)([atom])
    largest_graph.note(batch.batch, sizes.total_num_nodes)
    return batch


def _described(sizes: Any) -> str:
    if not isinstance(sizes, FixedSizeOptions):
        return "a batch"
    return f"a batch of {sizes.total_num_nodes:,} nodes, {sizes.total_num_edges:,} edges, {sizes.num_graphs:,} graphs"


def graphs_within(
    memory: str | float | None,
    dataset: Any,
    tuned: Callable[[int], FixedSizeOptions],
    most: int,
    model: nn.Module | None,
    optimizer: Optimizer | None,
) -> int:
    """Return the largest average number of graphs in a batch for which a compiled step fits in a given memory.

    Args:
        memory: The memory: bytes, or a text such as `"12 GB"`.
        dataset: The dataset.
        tuned: Function that returns the sizes of a batch for a number of graphs.
        most: Number of graphs of the dataset.
        model: The model.
        optimizer: The optimizer; None for predictions.

    Raises:
        TypeError: the memory is missing.
        ValueError: the model is missing, or a batch of one graph needs more memory.
    """
    if memory is None:
        raise TypeError("FixedSizeOptions.tune() missing 1 argument: 'target_graphs', or 'memory' with 'model'.")
    if model is None:
        raise ValueError(f"The memory is {memory!r}; pass the step's model, too: model=model, optimizer=optimizer.")
    recipe = _recipe_of(model, optimizer)

    def first_batch(sizes: FixedSizeOptions) -> Any:
        return next(iter(FixedSizeDataLoader(dataset, fixed_size_options=sizes, fixed_size_strategy="Window")))

    def measure(number: int) -> int:
        args, kwargs = as_call(getattr(model, "example_batch", first_batch)(tuned(number)))
        return compiled_use(recipe, Arguments.of(recipe.signature, args, kwargs))[0].peak

    return most_within(bytes_of(memory), measure, most)


def most_within(limit: int, measure: Callable[[int], int], most: int) -> int:
    """Return the largest number from 1 to `most` whose measurement is at most the limit.

    Measurements are almost a linear function of the number, so a few of them suffice.

    Args:
        limit: Bytes.
        measure: Function that returns the bytes for a number of graphs.
        most: Largest number of graphs.

    Raises:
        ValueError: one graph needs more.

    Example:
        >>> most_within(1_000_000, lambda number: 20_000 + 30_000 * number, most=10_000)
        32
    """
    known, fits, above, number = dict[int, int](), 0, most + 1, min(8, most)
    while above - fits > 1:
        known[number], width = measure(number), above - fits
        fits, above = (number, above) if known[number] <= limit else (fits, number)
        if above not in known:
            number = max(number * limit // max(known[number], 1), 2 * number)
        elif 2 * (above - fits) > width:  # several numbers may have the same sizes
            number = (fits + above) // 2
        else:
            low = known.get(fits, 0)
            number = fits + (above - fits) * (limit - low) // (known[above] - low)
        number = min(max(number, fits + 1), above - 1)
    if not fits:
        raise ValueError(
            f"A batch of one graph needs {quantity(known[1], 'B')} and the memory is {quantity(limit, 'B')}. Use fewer "
            "channels or layers, an autocast to bfloat16, or more memory."
        )
    return fits
