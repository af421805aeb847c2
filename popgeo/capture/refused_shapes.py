"""What is not static in a model: recognised by operation, explained by the model's line and a remedy."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from popgeo.capture.model_lines import frames, owner_of

_POOL = "pass size=, the fixed number of graphs of a batch, to the pooling"
_LOOPS = "reduce over edges with torch_geometric.utils.scatter alone, or take torch_geometric.transforms."
_BY_CALLER = {
    "add_self_loops": _LOOPS + "AddSelfLoops() beforehand",
    "add_remaining_self_loops": _LOOPS + "AddRemainingSelfLoops() beforehand and pass add_self_loops=False",
    "remove_self_loops": _LOOPS + "RemoveSelfLoops() beforehand",
    "found_only.<locals>.searches": "reduce over edges with torch_geometric.utils.scatter, or use popgeo.ops.radius",
    "to_dense_batch": "pass batch_size= and max_num_nodes= to to_dense_batch, or keep the nodes flat with their mask",
    "Aggregation.__call__": "pass dim_size=, the fixed number of graphs of a batch, and max_num_elements= if any; "
    "popgeo.nn.to_fixed_size(model, num_graphs) tells the readouts that a model holds how many graphs there are",
    "HypergraphConv.forward": "pass num_edges=, the fixed number of hyperedges",
    "GPSConv.forward": "use attn_type='multihead', or popgeo.nn.GPSConv",
    "global_add_pool": _POOL,
    "global_mean_pool": _POOL,
    "global_max_pool": _POOL,
    "maybe_num_nodes": "pass num_nodes= (or size=, dim_size=) instead of letting it be read from the indices",
    "scatter": "pass dim_size=, the fixed number of rows of the result",
    "softmax": "pass num_nodes=, the fixed number of rows of the index",
    "degree": "pass num_nodes= to degree",
    "one_hot": "pass num_classes= to one_hot",
}
_BY_OPERATION = {
    "index": "choose with torch.where(mask, x, other), or multiply by the mask, so that the shape stays",
    "index_put_": "write with torch.where(mask, new, old), so that the shapes stay",
    "nonzero": "keep the mask and use torch.where(mask, x, other), so that the shape stays",
    "masked_select": "multiply by the mask or use torch.where(mask, x, other), so that the shape stays",
    "_unique2": "count into a fixed number of bins with scatter_add, or make it unique before the batch is built",
    "unique_dim": "make it unique before the batch is built",
    "unique_consecutive": "make it unique before the batch is built",
    "bincount": "pass minlength=, the fixed number of bins",
    "repeat_interleave": "pass output_size=, the fixed length of the result",
    "_local_scalar_dense": "keep it a tensor: torch.where instead of `if`, a fixed size instead of one read from data",
    "numpy": "compute with torch, or before the batch is built: NumPy would compute once, while the step is captured",
    "_pack_padded_sequence": "give the recurrent layer the padded batch, and take each sequence's state at its length "
    "with torch.gather",
    "_ctc_loss": "compute the loss outside of the compiled step, or write its recursion over a fixed number of steps",
    "equal": "compare with torch.eq and keep the result a tensor",
}


@dataclass(frozen=True)
class Problem:
    """One place where a shape, or the path of the program, depends on data.

    Attributes:
        operation: Torch's name of it.
        source: `file:line in function: code` of the model's line.
        module: Dotted name of the submodule that it happened in.
        remedy: What to write instead.
    """

    operation: str
    source: str
    module: str
    remedy: str

    def __str__(self) -> str:
        place = f" (in submodule {self.module})" if self.module else ""
        what = f"{self.operation} depends on the data, and a compiled step needs it fixed"
        return f"{self.source or 'the function itself'}{place}: {what}. Remedy: {self.remedy}."


class DynamicShapeError(ValueError):
    """A shape or a decision of the model depends on the data in the batch."""


def remedy(operation: str, callers: Sequence[str]) -> str:
    """What to write instead of an operation, given the names of the functions it was called from, innermost first.

    Of functions that call each other, the remedy is that of the last, which is the one that the model calls; a number
    of nodes that a function of loops would read is passed to that function.

    Example:
        >>> remedy("nonzero", ["forward"])
        'keep the mask and use torch.where(mask, x, other), so that the shape stays'
    """
    for name in reversed(callers):
        if name in _BY_CALLER and not (name.endswith("self_loops") and operation == "_local_scalar_dense"):
            return _BY_CALLER[name]
    return _BY_OPERATION.get(operation, "compute with a fixed number of elements and a mask")


def is_dynamic(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the shape of an operation's result, or a Python value it returns, depends on the data."""
    name = func._schema.name.removeprefix("aten::")
    if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
        masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return masks and (name == "index" or args[2].dim() > 0)
    if name == "repeat_interleave":
        return isinstance(args[0], Tensor) and kwargs.get("output_size") is None
    if name == "_local_scalar_dense":
        # A number that the program itself made (torch.tensor(0.5).item()), or found outside, is known while capturing.
        return isinstance(args[0], FakeTensor) and args[0].constant is None
    return torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags


def callers(frame: FrameType | None) -> list[str]:
    """The names of the functions on the stack, innermost first, torch's own left out, up to the first of the user's."""
    codes = takewhile(lambda code: owner_of(code) != "user", (one.f_code for one in frames(frame)))
    return [getattr(code, "co_qualname", code.co_name) for code in codes if owner_of(code) != "torch"]
