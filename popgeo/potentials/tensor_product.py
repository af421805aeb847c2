"""e3nn's tensor product of edges and features of their sources, summed at the destinations, in one pass.

    sums[dst[e], u, k] += w[e, p, u] * C[p, i, j, k] * x[src[e], u, i] * y[e, j]      for each path p, channel u

This is a convolution of MACE or NequIP: x are features of nodes, y spherical harmonics, w weights of edges. Neither the
gathered features nor the messages are written to memory. Let g be the gradient of the sums. The scalar product of g and
the sums is linear in x, y, w and g. So every derivative, of any order, is the same sum over edges without one of the
four tensors. One operation therefore also computes its own derivatives. The compiled kernels give the same bits for any
number of threads.
"""

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.capture.op_graph import Op, OpGraph, substitute
from popgeo.engine.program.native_call import LOWERINGS, NativeCall, native_call
from popgeo.native import library
from popgeo.ops.kernel_arguments import as_int64
from popgeo.ops.refusals import refuse_index
from popgeo.ops.register_op import register
from popgeo.potentials.tensor_product_checks import NUM_OF_PATH, check_arrays, check_paths

_NUM_OF_ROW = NUM_OF_PATH + 2  # a path's numbers, and its first and last coefficient
_pack_call = struct.Struct("19q").pack


def _kernel(role: int, *inputs: Any) -> Tensor:
    """Compute the derivative of the scalar product of g and the sums by tensor number `role` of (x, y, w, g)."""
    *tensors, src, dst, num_nodes, widths, paths, terms = inputs
    like = check_arrays(role, tensors, src, dst, num_nodes, widths)
    tables = _tables(tuple(widths), tuple(paths), tuple(terms))
    native = library.packed("popgeo_tensor_product")
    if native is None or not like.is_cpu or like.dtype not in (torch.float32, torch.float64):
        refuse_index("src", src, num_nodes)
        refuse_index("dst", dst, num_nodes)
        return _plain(role, *inputs)
    read = [None if tensor is None else library.as_read(tensor) for tensor in tensors]
    src, dst = library.as_read(as_int64(src)), library.as_read(as_int64(dst))
    out = like.new_empty(src.shape[0] if role in (1, 2) else num_nodes, widths[role])
    if native(_pack_call(*_words(role, read, src, dst, num_nodes, widths, tables, out), torch.get_num_threads())):
        refuse_index("src", src, num_nodes)
        refuse_index("dst", dst, num_nodes)
        raise MemoryError("There is no memory for the edges of a tensor product.")
    return out


def _words(
    role: int,
    tensors: Sequence[Tensor | None],
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    widths: Sequence[int],
    tables: tuple[Any, Any],
    out: Tensor,
) -> list[int]:
    """Return the words of ProductCall in run_tensor_product.cpp, without the number of threads."""
    paths, terms = tables
    addresses = [*map(library.address, (*tensors, src, dst, out))]
    places = len(paths) // _NUM_OF_ROW, ctypes.addressof(paths), ctypes.addressof(terms)
    return [int(out.dtype is torch.float64), role, *addresses, num_nodes, *places, src.shape[0], *widths]


def _lower(graph: OpGraph, op: Op, places: Mapping[int, Tensor]) -> NativeCall | None:
    role, *tensors, src, dst, num_nodes, widths, paths, terms = substitute(op.args, places.__getitem__)
    out = places[op.makes()[0]]
    given = [one for one in (*tensors, src, dst, out) if one is not None]
    is_plain = all(one.is_cpu and one.is_contiguous() and not one.is_neg() for one in given)
    if not is_plain or {src.dtype, dst.dtype} != {torch.int64} or out.dtype not in (torch.float32, torch.float64):
        return None
    tables = _tables(tuple(widths), tuple(paths), tuple(terms))
    words = [*_words(role, tensors, src, dst, num_nodes, widths, tables, out), 1]
    call = native_call("popgeo_tensor_product", *words, num_threads=len(words) - 1)
    return replace(call, held=tables)


@functools.lru_cache(maxsize=64)
def _tables(widths: tuple[int, ...], paths: tuple[int, ...], terms: tuple[float, ...]) -> tuple[Any, Any]:
    """Check paths and coefficients, and return them in the layout of the compiled kernels."""
    check_paths(widths, paths, terms)
    rows, found, first = [], b"", 0
    for path in _by_path(paths, terms):
        *numbers, chosen = path
        found += b"".join(struct.pack("3qd", *map(int, term[:3]), term[3]) for term in chosen)
        rows += [*numbers, first, first + len(chosen)]
        first += len(chosen)
    as_rows = (ctypes.c_int64 * len(rows))(*rows)
    return as_rows, ctypes.create_string_buffer(found, max(len(found), 1))


def _by_path(paths: Sequence[int], terms: Sequence[float]) -> list[tuple[Any, ...]]:
    """Return the numbers of each path and its coefficients (i, j, k, factor), sorted from `terms` by path."""
    chosen: list[list[Sequence[float]]] = [[] for _ in range(len(paths) // NUM_OF_PATH)]
    for at in range(0, len(terms), 5):
        chosen[int(terms[at])].append(terms[at + 1 : at + 5])
    return [(*paths[at * NUM_OF_PATH : (at + 1) * NUM_OF_PATH], one) for at, one in enumerate(chosen)]


def _plain(role: int, *inputs: Any) -> Tensor:
    """Compute `_kernel` in plain torch, as its definition."""
    *tensors, src, dst, num_nodes, widths, paths, terms = inputs
    ends: list[Tensor | None] = [src, None, None, dst]
    on_edges = [t if t is None or end is None else t.index_select(0, end) for t, end in zip(tensors, ends, strict=True)]
    like = next(tensor for tensor in on_edges if tensor is not None)
    out = like.new_zeros(src.shape[0], widths[role])
    for channels, x, num_x, y, num_y, w, g, num_g, chosen in _by_path(paths, terms):
        cube = like.new_zeros(num_x, num_y, num_g)
        for i, j, k, factor in chosen:
            cube[int(i), int(j), int(k)] += factor
        starts, counts = (x, y, w, g), (channels * num_x, num_y, channels, channels * num_g)
        shapes = ((channels, num_x), (num_y,), (channels,), (channels, num_g))
        letters, parts = ["eui", "ej", "eu", "euk"], []
        for tensor, start, count, shape in zip(on_edges, starts, counts, shapes, strict=True):
            parts.append(None if tensor is None else tensor[:, start : start + count].reshape(-1, *shape))
        asked = [letter for letter, part in zip(letters, parts, strict=True) if part is not None]
        equation = f"ijk,{','.join(asked)}->{letters[role]}"
        made = torch.einsum(equation, cube, *(part for part in parts if part is not None))
        out[:, starts[role] : starts[role] + counts[role]] += made.flatten(1)
    end = ends[role]
    return out if end is None else out.new_zeros(num_nodes, widths[role]).index_add(0, end, out)


def _fake(role: int, *inputs: Any) -> Tensor:
    *tensors, src, _, num_nodes, widths, _, _ = inputs
    like = next(tensor for tensor in tensors if tensor is not None)
    return like.new_empty(src.shape[0] if role in (1, 2) else num_nodes, widths[role])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, src, dst = ctx.saved_tensors
    role, *sizes = ctx.numbers
    tensors[role] = grad
    found: list[Tensor | None] = [None] * 4
    for asked in range(4):
        if asked != role and ctx.needs_input_grad[1 + asked]:
            rest = [None if at == asked else tensor for at, tensor in enumerate(tensors)]
            found[asked] = _PRODUCT(asked, *rest, src, dst, *sizes)
    return None, *found, *[None] * 6


_PRODUCT = register(
    "tensor_product(int role, Tensor? x, Tensor? y, Tensor? w, Tensor? g, Tensor src, Tensor dst, SymInt num_nodes, "
    "int[] widths, int[] paths, float[] terms) -> Tensor",
    kernel=_kernel,
    fake=_fake,
    backward=_differentiate,
)


LOWERINGS["popgeo.tensor_product.default"] = _lower


class SumOfProducts(nn.Module):
    """A module that sums a tensor product of e3nn over the edges that arrive at each node.

    Args:
        product: A `TensorProduct` with a weight for each path, edge and channel ("uvu"), and with one channel of edges.
            Its coefficients are found by calls, and then checked.

    Raises:
        ValueError: the product is of a different kind.
    """

    product: Any

    def __init__(self, product: Any) -> None:
        super().__init__()
        object.__setattr__(self, "product", product)  # not a submodule, so that saved weights keep the product's names
        self.widths = [product.irreps_in1.dim, product.irreps_in2.dim, product.weight_numel, product.irreps_out.dim]
        self.paths, self.terms = _read(product)
        edge, generator, dtype = torch.arange(3), torch.Generator().manual_seed(0), _dtype_of(product)
        x, y, w = (torch.randn(3, width, generator=generator, dtype=dtype) for width in self.widths[:3])
        with torch.no_grad():
            expected, found = product(x, y, w), SumOfProducts.forward(self, x, y, w, edge, edge)
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
            raise ValueError("The product is not the sum of its paths, so it cannot be summed over edges in one pass.")

    def forward(self, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """Return the sums, [num_nodes, irreps_out.dim].

        Args:
            x: Features of nodes. [num_nodes, irreps_in1.dim]
            y: Features of edges. [num_edges, irreps_in2.dim]
            w: Weights of edges. [num_edges, weight_numel]
            src: Source of each edge. [num_edges]
            dst: Destination of each edge. [num_edges]
        """
        return _PRODUCT(3, x, y, w, None, src, dst, x.shape[0], self.widths, self.paths, self.terms)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.product.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing, because a product has only constants."""


def _dtype_of(product: nn.Module) -> torch.dtype:
    return next((b.dtype for b in product.buffers() if b.is_floating_point()), torch.get_default_dtype())


def _read(product: Any) -> tuple[list[int], list[float]]:
    """Find the paths of a product and their coefficients by calls with unit vectors as inputs."""
    starts = [[0, *torch.tensor([block.dim for block in irreps]).cumsum(0).tolist()] for irreps in _irreps(product)]
    paths: list[int] = []
    terms: list[float] = []
    weight, dtype = 0, _dtype_of(product)
    for number, path in enumerate(product.instructions):
        places = path.i_in1, path.i_in2, path.i_out
        parts = [irreps[at] for irreps, at in zip(_irreps(product), places, strict=True)]
        channels = parts[0].mul
        if (path.connection_mode, path.has_weight, parts[1].mul, parts[2].mul) != ("uvu", True, 1, channels):
            raise ValueError(
                f"Path {number} is {path.connection_mode} with {parts[1].mul} channels of edges; it must be uvu, with "
                f"weights and one channel of edges."
            )
        sizes = [part.ir.dim for part in parts]
        x, y, g = (begin[at] for begin, at in zip(starts, places, strict=True))
        i, j = torch.cartesian_prod(torch.arange(sizes[0]), torch.arange(sizes[1])).reshape(-1, 2).T
        rows = torch.arange(len(i))
        inputs = [torch.zeros(len(i), width, dtype=dtype) for width in (starts[0][-1], starts[1][-1])]
        weights = torch.zeros(len(i), product.weight_numel, dtype=dtype)
        inputs[0][rows, x + i], inputs[1][rows, y + j], weights[rows, weight] = 1.0, 1.0, 1.0  # the first channel
        with torch.no_grad():
            made = product(*inputs, weights)[:, g : g + sizes[2]]
        for at, k in made.nonzero().tolist():
            terms += [float(number), float(i[at]), float(j[at]), float(k), float(made[at, k])]
        paths += [channels, x, sizes[0], y, sizes[1], weight, g, sizes[2]]
        weight += channels
    return paths, terms


def _irreps(product: Any) -> tuple[Any, Any, Any]:
    return product.irreps_in1, product.irreps_in2, product.irreps_out
