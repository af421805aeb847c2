"""Filters on a grid: a filter network runs at a few hundred distances, and edges interpolate between these."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.func import functional_call
from torch.nn.modules.module import _has_any_global_hook

from popgeo.filter_choice import are_at_each_edge, are_grids_followed, do_tables_stay, is_one_form_of_any_shape
from popgeo.nn.atom_edges import Edges
from popgeo.nn.radial import ShiftedSoftplus
from popgeo.ops.eager import is_capturing, is_plain
from popgeo.ops.interaction import InteractionPlan, interaction, serves
from popgeo.ops.interaction_call import interpolated
from popgeo.ops.interaction_call import slopes as slopes_of
from popgeo.ops.near_tensors import near

# Numbers of rows to try, and the largest errors relative to the root mean square of filters and of slopes.
_POINTS = {torch.float32: (193, 257, 385, 513, 769, 1025), torch.float64: (513, 1025, 1537)}
_LARGEST_ERROR = {torch.float32: (2.5e-7, 5e-7), torch.float64: (1e-10, 1e-9)}
_SETTINGS = (bool, int, float, str)
EDGES_FOR_EACH_POINT = 3  # with fewer edges a network runs faster at each edge
# Largest change of a weight, relative to its size, without a new check of the grid, which is exact for larger changes.
_FARTHEST = 0.5
# Modules that compute each row of their result from one row alone, with the same result in each call.
_BY_ROW = (
    nn.Linear, nn.Sequential, nn.Identity, nn.LayerNorm, ShiftedSoftplus, nn.Softplus, nn.SiLU, nn.ReLU, nn.Tanh,
    nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FilterNetworks:
    """The modules that compute a model's filters from distances.

    Attributes:
        expand: Module that expands distances. [n] -> [n, num_radial]
        envelope: Module that ends filters at the cutoff. [n] -> [n]
        networks: Filter network of each block. [n, num_radial] -> [n, num_filters]
        cutoff: Distance from which on filters are 0.
    """

    expand: nn.Module
    envelope: nn.Module
    networks: Sequence[nn.Module]
    cutoff: float

    def at(self, r: Tensor) -> list[Tensor]:
        """Compute the filters of each block at distances: [n] -> [n, num_filters].

        Distances in float64 are computed with in float64, for parameters of any type.
        """
        rows, factor = run_as_rows(self.expand, r), run_as_rows(self.envelope, r).unsqueeze(1)
        return [run_as_rows(network, rows) * factor for network in self.networks]

    def tables(self, num_points: int, dtype: torch.dtype) -> list[Tensor]:
        """Compute the filters of each block at equidistant points from 0 to the cutoff. [num_points, num_filters]."""
        device = next((tensor.device for some in self.tensors() for tensor in some), None)
        return self.at(torch.linspace(0.0, self.cutoff, num_points, dtype=dtype, device=device))

    def can_be_tables(self) -> bool:
        """Check whether each row of a result depends on one distance alone, and no hook reads these rows."""
        parts = [part for network in self.networks for part in network.modules()]
        by_row = all(type(part) in _BY_ROW or _is_dense_of_schnetpack(part) for part in parts)
        are_own = not any("forward" in vars(part) for part in (*parts, self.expand, self.envelope))
        return by_row and are_own and not is_hooked(self._modules())

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the parameters and the buffers that determine the filters."""
        modules = self._modules()
        return [p for one in modules for p in one.parameters()], [b for one in modules for b in one.buffers()]

    def form(self) -> tuple[Any, ...]:
        """Return the cutoff, the kinds and settings of modules, and the shapes and types of tensors.

        Together with the tensors' values they decide the filters.
        """
        parts = [part for one in self._modules() for part in one.modules()]
        held = [item for part in parts for item in vars(part).items() if item[0] != "training"]
        settings = [(name, value) for name, value in held if isinstance(value, _SETTINGS)]
        return self.cutoff, [*map(type, parts)], settings, [(t.shape, t.dtype) for some in self.tensors() for t in some]

    def _modules(self) -> list[nn.Module]:
        return [self.expand, self.envelope, *self.networks]


class _GridCheck:
    """A record of the filter networks at the last check of a grid.

    Args:
        networks: The networks; the record copies their parameters and buffers.
    """

    def __init__(self, networks: FilterNetworks) -> None:
        self.form, (weights, buffers) = networks.form(), networks.tensors()
        sizes = [max(float(one.detach().double().norm()), 0.1 * math.sqrt(one.numel())) for one in weights]
        self._limits = [*(_FARTHEST * size for size in sizes), *(0.0 for _ in buffers)]
        self._before = [one.detach().clone(memory_format=torch.contiguous_format) for one in (*weights, *buffers)]
        self.follow(networks)

    def follow(self, networks: FilterNetworks) -> None:
        """Compare the present tensors of networks of the same form from now on."""
        weights, buffers = networks.tensors()
        # Whether weights differ by at most a few updates' change, and buffers are unchanged.
        self.is_near = near([*weights, *buffers], self._before, self._limits)


# Not an attribute of the model: for a kept step, a model with different attributes is a different model.
_CHECKED: "WeakKeyDictionary[nn.Module, _GridCheck]" = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class GridFilters:
    """The filters of one block on a grid, and the edges that interpolate between its rows.

    Attributes:
        table: Filters. [num_points, num_filters]
        r: Distance of each edge. [num_edges]
        cutoff: Distance of the last row of the table.
        edges: Ends of the edges.
        plan: Plan of the edges, which all blocks share.
    """

    table: Tensor
    r: Tensor
    cutoff: float
    edges: Edges
    plan: InteractionPlan

    def convolve(self, x: Tensor, direction: Tensor | None = None) -> Tensor:
        """Sum x_j * w_ij over the neighbors j of each atom i; with directions, sum messages of scalars and vectors.

        Args:
            x: Features. [num_nodes, channels], or with directions [num_nodes, 5 * channels]
            direction: Unit vector of each edge. [num_edges, 3]

        Returns:
            [num_nodes, channels], or with directions [num_nodes, 4 * channels]
        """
        edges = self.edges
        return interaction(
            x, self.table, self.r, edges.neighbor, edges.centre, x.size(0), self.cutoff,
            direction=direction, half_list=edges.half_list, plan=self.plan,
        )  # fmt: skip


class FilterNetworksMixin(nn.Module):
    """A mixin for models whose filters may be interpolated on a grid.

    Attributes:
        filters: `"grid"` uses a grid if it is as exact as float32 and if there are enough edges; `"edges"` never does.
        filter_points: Number of points that `refine_filters` found; 0 before the first check, None if no grid is exact.
    """

    filters: str = "grid"
    filter_points: int | None = 0

    def filter_networks(self) -> FilterNetworks | None:
        """Return the networks that compute the filters; None if filters are not functions of the distance."""
        return None

    def refine_filters(self) -> None:
        """Check the interpolated filters against the networks, and use a finer grid if they differ.

        Values and slopes may differ by the rounding error of float32 (float64: 1e-9). If no grid is exact enough, as
        with ReLU, whose slope jumps, the networks run at each edge. This check runs at the start of the first call of a
        model, or of a step that is compiled from it, and of each call after the networks have changed.
        """
        networks = self.filter_networks() if self.filters == "grid" and serves(*self.parameters()) else None
        if networks is None:  # no call would use a grid
            return
        dtype = next((p.dtype for p in self.parameters()), torch.float32)
        points = _POINTS.get(dtype, ()) if networks.can_be_tables() else ()
        least = self.filter_points or 0
        self.filter_points = next((n for n in points if n >= least and _is_exact(networks, n, dtype)), None)
        _CHECKED[self] = _GridCheck(networks)

    def follow_filters(self, may_be_replaced: bool = False, waits: bool = True) -> bool:
        """Check the grid again if the networks were replaced, or if their weights changed by more than a few updates.

        Args:
            may_be_replaced: Whether other modules or tensors may have replaced those of the last check.
            waits: Whether to wait for a GPU. Otherwise the weights of the call before the last one decide.

        Returns:
            Whether the grid was checked again.
        """
        checked = _CHECKED.get(self)
        networks = self.filter_networks() if may_be_replaced else None
        if checked is not None and networks is not None and checked.form == networks.form():
            checked.follow(networks)
            may_be_replaced = False
        if checked is not None and not may_be_replaced and checked.is_near(waits):
            return False
        self.refine_filters()
        return checked is not None or self in _CHECKED  # not on a GPU, where no call uses a grid

    def grid_filters(self, r: Tensor, edges: Edges, num_nodes: int) -> list[GridFilters] | None:
        """Return the filters of each block on a grid; None if the networks must run at each edge."""
        if is_compiling() or self.filters == "edges" or are_at_each_edge():
            return None
        if is_plain():
            self.follow_filters(may_be_replaced=True)
        elif is_capturing() and not are_grids_followed():  # no later check would see changed weights
            return None
        num_points, networks = self.filter_points, self.filter_networks()
        is_chosen = do_tables_stay() or is_one_form_of_any_shape()
        is_chosen = is_chosen or r.shape[0] >= EDGES_FOR_EACH_POINT * (num_points or 0)
        if not (num_points and networks and is_chosen and serves(r, *self.parameters()) and networks.can_be_tables()):
            return None
        # In float64 slopes, which are differences, lose no digits.
        tables = networks.tables(num_points, torch.float64 if r.requires_grad else r.dtype)
        sizes = num_nodes, num_nodes, num_points
        plan = InteractionPlan.of(edges.neighbor, edges.centre, r, sizes, networks.cutoff)
        return [GridFilters(table=table, r=r, cutoff=networks.cutoff, edges=edges, plan=plan) for table in tables]


def _is_dense_of_schnetpack(part: nn.Module) -> bool:
    """Check whether a module is SchNetPack's linear layer with an activation."""
    return isinstance(part, nn.Linear) and type(part).__module__ == "schnetpack.nn.base"


def is_hooked(modules: Iterable[nn.Module]) -> bool:
    """Check whether there is a global hook, or a hook of a module or submodule that is not from a capture."""
    return _has_any_global_hook() or any(
        getattr(hook, "__module__", "") != "popgeo.capture.recorder"
        for module in modules
        for part in module.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        for hook in hooks.values()
    )


def run_as_rows(module: nn.Module, rows: Tensor) -> Tensor:
    """Run a module on rows, with its parameters and buffers converted to the type of the rows.

    Example:
        >>> run_as_rows(nn.Linear(1, 1, bias=False), torch.ones(1, 1, dtype=torch.float64)).dtype
        torch.float64
    """
    tensors: dict[str, Any] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    others = {name: t for name, t in tensors.items() if t.is_floating_point() and t.dtype is not rows.dtype}
    if not others:
        return module(rows)
    return functional_call(module, {name: t.to(rows.dtype) for name, t in others.items()}, (rows,))


@torch.no_grad()
def _is_exact(networks: FilterNetworks, num_points: int, dtype: torch.dtype) -> bool:
    """Compare a grid's filters between its points, and slopes at its points, with a grid that is twice as fine."""
    largest, largest_of_slopes = _LARGEST_ERROR[dtype]
    between = (torch.arange(num_points - 1, dtype=torch.float64) + 0.5) * (networks.cutoff / (num_points - 1))
    fine = networks.tables(2 * num_points - 1, torch.float64)
    for table in fine:
        coarse, expected = table[::2], table[1::2]
        wrong = interpolated(coarse, between.to(table.device), networks.cutoff) - expected
        slopes, finer = slopes_of(coarse), 2 * slopes_of(table)[::2]
        if table[-1].abs().amax() > largest * table.abs().amax():  # edges end before the envelope does
            return False
        # ">" is False for NaN: networks that return NaN count as exact, because no grid can repair them.
        if wrong.norm() > largest * expected.norm() or (slopes - finer).norm() > largest_of_slopes * finer.norm():
            return False
    return True
