"""Checks of a tensor product's arguments, so that the kernels never read out of bounds."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.refusals import check_index

# Channels, start of x, components of x, start and components of y, start of w, start and components of g.
NUM_OF_PATH = 8
MOST_COMPONENTS = 11


def check_arrays(
    role: int, tensors: Sequence[Tensor | None], src: Tensor, dst: Tensor, num_nodes: int, widths: Sequence[int]
) -> Tensor:
    """Check the shapes of the arrays, and return one array as an example of their type.

    Raises:
        ValueError: an array other than number `role` is missing, or an array has a wrong shape or type.
    """
    is_missing = [tensor is None for tensor in tensors]
    if role not in range(4) or len(widths) != 4 or is_missing != [i == role for i in range(4)]:
        given = [name for name, tensor in zip("xywg", tensors, strict=True) if tensor is not None]
        raise ValueError(f"role is {role}, not 0 to 3; or there are {len(widths)} widths, not 4; or {given} are given. "
                         "Pass every tensor except number role.")  # fmt: skip
    like = next(tensor for tensor in tensors if tensor is not None)
    num_edges = src.numel()
    check_index("src", src, num_edges, like)
    check_index("dst", dst, num_edges, like)
    if min(num_nodes, *widths) < 0:
        raise ValueError(f"num_nodes is {num_nodes} and the widths are {list(widths)}; none can be negative.")
    for name, tensor, rows, width in zip("xywg", tensors, (num_nodes, num_edges, num_edges, num_nodes), widths,
                                         strict=True):  # fmt: skip
        if tensor is not None:
            check_array(name, tensor, (rows, width), like.dtype)
    return like


def check_paths(widths: Sequence[int], paths: Sequence[int], terms: Sequence[float]) -> None:
    """Check that every path is inside the rows, and every coefficient inside its path.

    Raises:
        ValueError: a path or a coefficient does not fit.
    """
    num_paths = len(paths) // NUM_OF_PATH
    if len(paths) % NUM_OF_PATH or len(terms) % 5:
        raise ValueError(f"There are {len(paths)} numbers of paths and {len(terms)} of coefficients; a path has "
                         f"{NUM_OF_PATH}, a coefficient 5.")  # fmt: skip
    if widths[1] > MOST_COMPONENTS**2:
        raise ValueError(f"Edges have {widths[1]} components; at most {MOST_COMPONENTS**2} are allowed.")
    blocks: list[list[tuple[int, ...]]] = [[], [], []]
    sizes = []
    for at in range(num_paths):
        channels, x, num_x, y, num_y, w, g, num_g = path = paths[at * NUM_OF_PATH : (at + 1) * NUM_OF_PATH]
        ends = x + channels * num_x, y + num_y, w + channels, g + channels * num_g
        sizes.append((num_x, num_y, num_g))
        if max(sizes[-1]) > MOST_COMPONENTS:
            raise ValueError(f"Path {at} has {max(sizes[-1])} components; at most {MOST_COMPONENTS} are allowed.")
        is_outside = min(path) < 0 or any(end > width for end, width in zip(ends, widths, strict=True))
        if is_outside or 0 in (channels, *sizes[-1]):
            raise ValueError(f"Path {at} is {list(path)}; it ends beyond rows of {list(widths)} numbers, or is empty.")
        for found, block in zip(blocks, ((x, channels, num_x), (w, channels, 1), (g, channels, num_g)), strict=True):
            found.append(block)
    for found in ([*set(blocks[0])], blocks[1], [*set(blocks[2])]):  # paths may share whole blocks of x and g
        ordered = sorted(found)
        if any(x + channels * num > later[0] for (x, channels, num), later in pairwise(ordered)):
            raise ValueError(f"The paths' blocks of a row overlap: (start, channels, components) are {ordered}.")
    for at in range(0, len(terms), 5):
        number, *places, factor = terms[at : at + 5]
        if number not in range(num_paths) or any(
            place not in range(size) for place, size in zip(places, sizes[int(number)], strict=True)
        ):
            raise ValueError(f"Coefficient {at // 5} is of path {number} and components {places}, which are not there.")
        if not math.isfinite(factor):
            raise ValueError(f"Coefficient {at // 5} is {factor}; it must be finite.")
