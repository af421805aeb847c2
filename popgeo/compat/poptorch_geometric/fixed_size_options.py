"""Sizes of a batch as in PopTorch Geometric, and translations of the arguments of release 3.2."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from popgeo import data
from popgeo.compat.poptorch.errors import check, said
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.strategy import FixedSizeStrategy


class FixedSizeOptions(data.FixedSizeOptions):
    """Number of nodes, edges and graphs of every batch, including padding, and the values of padding.

    See `popgeo.data.FixedSizeOptions` for the fields. Here they may be changed.

    Args:
        num_nodes: Nodes of a batch, or a number for each node type.
        num_edges: Edges of a batch, or a number for each edge type. Default: `num_nodes * (num_nodes - 1)` with all
            nodes together, for each edge type.
        num_graphs: Graphs of a batch, at least 2.
        node_pad_value: Value of node attributes in padding. Default: 0.
        edge_pad_value: Value of edge attributes in padding. Default: 0.
        graph_pad_value: Value of graph attributes in padding. Default: 0.
        pad_graph_defaults: Values of padding graphs for attributes that are not tensors.

    Raises:
        ValueError: `num_graphs` is below 2.

    Example:
        >>> options = FixedSizeOptions(num_nodes=5)
        >>> options.num_graphs = 300
        >>> options.num_edges, options.num_graphs
        (20, 300)
        >>> options.to_hetero(["a", "b"], [("a", "to", "b")]).num_nodes
        {'a': 5, 'b': 5}
        >>> options.total_num_nodes
        10
    """

    __setattr__ = object.__setattr__
    __hash__ = None  # type: ignore[assignment]  # its fields may change

    def __post_init__(self) -> None:
        validate_num_graphs(self.num_graphs)
        own = self.__dict__
        own["num_edges"] = None if self.num_edges == {} else self.num_edges
        own["pad_graph_defaults"] = dict(self.pad_graph_defaults or {})
        pads = ("node_pad_value", "edge_pad_value", "graph_pad_value")
        own.update({name: 0.0 if own[name] is None else own[name] for name in pads})
        super().__post_init__()

    def to_hetero(self, node_types: Sequence[Any], edge_types: Sequence[Any]) -> "FixedSizeOptions":
        """Give each type its own size, in place. A single number becomes the size of every type."""
        if not isinstance(self.num_nodes, dict):
            self.__dict__["num_nodes"] = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.__dict__["num_edges"] = dict.fromkeys(edge_types, self.num_edges)
        return self

    def __repr__(self) -> str:
        kept = {name: f" (At least one {name[4:-1]} reserved for padding)" for name in _SIZES}
        fields = (f"{name}={value}{kept.get(name, '')}" for name, value in self._chosen().items())
        return f"{type(self).__name__}({', '.join(fields)})"


def validate_num_graphs(num_graphs: int) -> None:
    """Raise ValueError if a batch has no room for a real graph and a graph of padding."""
    check(num_graphs >= 2, said("validate_num_graphs", num_graphs=num_graphs), ValueError)


_SIZES = ("num_nodes", "num_edges", "num_graphs")


Init = Callable[..., None]
_OLDER_WORDS = frozenset({"num_nodes", "num_edges", "collater_args"})  # sizes of a loader in release 3.2
_OF_OPTIONS = ("num_edges", "num_graphs", "node_pad_value", "edge_pad_value", "graph_pad_value", "pad_graph_defaults")


_OF_COLLATER = ["num_nodes", *_OF_OPTIONS[:-1], "add_masks_to_batch", "trim_nodes", "trim_edges", _OF_OPTIONS[-1]]
_OF_COLLATER += ["follow_batch", "exclude_keys"]


def in_todays_words(dataset: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of `CustomFixedSizeDataLoader` to arguments of `FixedSizeDataLoader`.

    Args:
        dataset: Graphs.
        given: `num_nodes` of a batch (default: room for the largest graphs); `batch_size`, its graphs including one of
            padding (default: 2, or the number of a packing `batch_sampler`); `num_edges`; `collater_args` (sizes, pad
            values, `add_masks_to_batch`, `trim_nodes`, `trim_edges`); `fixed_size_options`, `batch_sampler`, and
            arguments of torch's `DataLoader`.

    Raises:
        AssertionError: A `batch_sampler` makes batches of more nodes than fit.

    Example:
        >>> given = {"num_nodes": 100, "batch_size": 10, "collater_args": {"num_edges": 300, "trim_edges": True}}
        >>> in_todays_words([], given)["over_size_strategy"]
        <OverSizeStrategy.TrimEdges: 3>
    """
    rest = dict(given)
    num_nodes, batch_size, num_edges = (rest.pop(name, None) for name in ("num_nodes", "batch_size", "num_edges"))
    of_collater = dict(rest.pop("collater_args", None) or {})
    if num_edges is not None:
        of_collater["num_edges"] = num_edges
    sampler, options = rest.get("batch_sampler"), rest.pop("fixed_size_options", None)
    if options is None:
        sizes = {name: of_collater.pop(name) for name in _OF_OPTIONS if name in of_collater}
        if sampler is not None and hasattr(sampler, "max_num_graphs"):
            batch_size = sampler.max_num_graphs + 1
            sizes.setdefault("num_edges", sampler.max_num_edges + 1)
            used = sampler.max_num_nodes
            check(num_nodes is None or num_nodes > used, said("in_todays_words", num_nodes=num_nodes, used=used))
            num_nodes = num_nodes or used + 1
        sizes.setdefault("num_graphs", batch_size or 2)
        if num_nodes is None:
            num_nodes = FixedSizeOptions.from_dataset(dataset, sizes["num_graphs"]).num_nodes
        options = FixedSizeOptions(num_nodes, **sizes)
    trims = bool(of_collater.pop("trim_nodes", False)), bool(of_collater.pop("trim_edges", False))
    masks = bool(of_collater.pop("add_masks_to_batch", False))
    check(not of_collater, f"`collater_args` holds {sorted(of_collater)}; pass them to the loader itself.")
    strategy = next(one for one in OverSizeStrategy if (one.trims_nodes, one.trims_edges) == trims)
    chosen = {"fixed_size_options": options, "over_size_strategy": strategy, "add_pad_masks": masks}
    return {"batch_size": options.num_graphs, **chosen, **rest}


def packed_in_todays_words(dataset: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of release 3.2's `FixedSizeDataLoader`, which packed graphs by nodes and edges.

    Args:
        dataset: Graphs.
        given: `batch_size` (maximum number of graphs, including one of padding), `num_nodes`, `num_edges`,
            `collater_args`, and arguments of torch's `DataLoader`.

    Example:
        >>> told = packed_in_todays_words([], {"batch_size": 10, "num_nodes": 300, "num_edges": 600})
        >>> told["fixed_size_strategy"].name
        'StreamPack'
    """
    strategy = FixedSizeStrategy.StreamPack if given.get("batch_sampler") is None else FixedSizeStrategy.PadToMax
    return {"fixed_size_strategy": strategy, **in_todays_words(dataset, {"batch_size": 2, **given})}


def clusters_in_todays_words(cluster_data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of release 3.2's `FixedSizeClusterLoader`.

    Args:
        cluster_data: Clusters.
        given: `num_nodes`, `collater_args`, and arguments of torch's `DataLoader`.

    Raises:
        ValueError: `num_nodes` is missing.

    Example:
        >>> given = {"num_nodes": 90, "collater_args": {"num_edges": 300, "trim_edges": True}}
        >>> clusters_in_todays_words([], given)["fixed_size_options"].num_edges
        300
    """
    if given.get("num_nodes") is None:
        raise ValueError("FixedSizeClusterLoader is given collater_args without num_nodes; pass fixed_size_options.")
    return {**in_todays_words(cluster_data, {**given, "batch_size": 2}), "batch_size": given.get("batch_size", 1)}


def sizes_in_todays_words(args: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of release 3.2's `FixedSizeCollater`, which took sizes and pad values one by one.

    Without `num_graphs`, a batch has one graph more than the list.

    Args:
        args: Positional arguments, in the order of that release.
        given: Keyword arguments.

    Example:
        >>> sizes_in_todays_words([9], {"num_edges": 20, "trim_nodes": True})["fixed_size_options"].num_edges
        20
    """
    rest = {**dict(zip(_OF_COLLATER, args, strict=False)), **given}
    sizes = {name: rest.pop(name, None) for name in ("num_nodes", *_OF_OPTIONS)}
    known = {name: size for name, size in sizes.items() if size is not None}
    return {"fixed_size_options": FixedSizeOptions(**known), "adds_a_graph": sizes["num_graphs"] is None, **rest}


def with_older_words(translate: Callable[[Any, Mapping[str, Any]], dict[str, Any]]) -> Callable[[Init], Init]:
    """Return a decorator of a loader's constructor that also accepts the arguments of release 3.2.

    Args:
        translate: Function from the graphs and the given arguments to today's arguments.

    Raises:
        ValueError: Raised by the constructor if sizes are given in both forms.
    """

    def make(init: Init) -> Init:
        _, graphs, *names = inspect.signature(init).parameters

        @functools.wraps(init)
        def begin(self: Any, *args: Any, **kwargs: Any) -> None:
            if older := sorted(_OLDER_WORDS & {*kwargs}):
                given = {**dict(zip([graphs, *names], args, strict=False)), **kwargs}
                check(given.get("fixed_size_options") is None, said("begin", older=", ".join(older)), ValueError)
                own = given.pop(graphs)
                args, kwargs = (own,), translate(own, given)
            init(self, *args, **kwargs)

        return begin

    return make
