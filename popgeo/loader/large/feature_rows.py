"""Rows of a feature store: asked for batch by batch, one request for each type and attribute, and checked."""

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import DistError
from torch_geometric.data import FeatureStore, TensorAttr

from popgeo.data.axes import Attribute, Axis, StoreKey

_WAITS = (0.1, 0.4)  # seconds before a request that failed is made again
_MAKES_NO_SENSE = (LookupError, TypeError, ValueError, AttributeError, NotImplementedError)
_EDGES = {"edge_index", "adj_t", "adj"}
_PROBED = 4096  # fewer rows can come in order from a database that answers more of them in parts
Name = tuple[StoreKey, str]
"""A node or edge type, and the name of an attribute."""


def stays_in_store(attribute: Attribute) -> bool:
    """Whether rows are asked for: the values then are the first one, shown again in the place of all others."""
    return attribute.is_tensor and len(attribute.tensor) > 1 and attribute.tensor.stride(0) == 0


def patiently(store: Any, names: str, request: Callable[[], Any]) -> Any:
    """What a store answers. A request that fails is made again, twice, unless the error says that it makes no sense.

    Args:
        store: The store.
        names: What it is asked for.
        request: Asks it.

    Raises:
        ConnectionError: the store does not answer.
        ValueError: it has not what it is asked for.
    """
    for wait in (*_WAITS, None):
        try:
            return request()
        except DistError:
            raise  # other processes take part in the request: it cannot be made again by one
        except _MAKES_NO_SENSE as error:
            raise ValueError(
                f"{store} lists {names}, but has not all of it: {error!r}. Correct edges that lead to rows that it has "
                f"not, and leave out an attribute that it lacks with exclude_keys."
            ) from error
        except Exception as error:  # clients of databases have errors of their own
            if wait is None:
                raise ConnectionError(
                    f"{store} was asked {len(_WAITS) + 1} times for {names}: {error!r}. Once it is back, make the "
                    f"loader again, or loader.load_state_dict(loader.state_dict()) to continue with this batch."
                ) from error
            time.sleep(wait)
    raise AssertionError  # the last turn returns or raises


class ReadOnlyFeatures(FeatureStore):
    """A feature store whose attributes are those that it was made with.

    Attributes:
        columns: The data of each attribute, by the node or edge type and the name.
    """

    columns: dict[Name, Any]

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """All attributes."""
        return [TensorAttr(group_name=key, attr_name=name) for key, name in self.columns]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise ValueError(f"{type(self).__name__} takes no new attribute; make it again, with {attr.attr_name!r}.")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self.columns.pop((attr.group_name, attr.attr_name), None) is not None


class FeatureRows:
    """Asks a feature store for rows.

    Rows are asked for in ascending order and each once, whatever order a batch has: a store on disk reads forwards, and
    one that answers by number, as databases may, answers rightly. A request that fails is made again, twice.

    Args:
        feature_store: The store.
        attributes: What it calls each attribute.
    """

    def __init__(self, feature_store: FeatureStore, attributes: Mapping[Name, TensorAttr]) -> None:
        self.feature_store, self.attributes = feature_store, attributes
        # One to whose answers several processes contribute is asked by each of them, also for nothing.
        self.is_collective = bool(getattr(feature_store, "is_collective", False))

    @classmethod
    def listed(cls, feature_store: FeatureStore) -> "FeatureRows":
        """All attributes that a store lists."""
        attributes = {}
        for listed in feature_store.get_all_tensor_attrs():
            attr = copy.copy(listed)
            if not attr.is_set("group_name"):
                attr.group_name = None
            attributes[attr.group_name, attr.attr_name] = attr
        # PyG's graphs are stores, too, but list attributes of nodes only.
        of_edges = {name for store in getattr(feature_store, "edge_stores", ()) for name in store.edge_attrs()}
        if of_edges - _EDGES:
            lost = f"{sorted(of_edges - _EDGES)}. Pass the graph itself, or a store that lists them."
            warnings.warn(f"As a store, the graph lists no attributes of edges: batches have no {lost}", stacklevel=2)
        return cls(feature_store, attributes)

    def of(self, attributes: Sequence[Attribute], rows: Mapping[Axis, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Values for each attribute, and the place in them of each row of a batch.

        Args:
            attributes: Those of nodes and edges.
            rows: Numbers of nodes and edges. int64 [number of them]

        Raises:
            ConnectionError: the store does not answer.
            ValueError: it answers something else.
        """
        asked = [attribute for attribute in attributes if len(rows[attribute.axis]) or self.is_collective]
        numbers = {axis: rows[axis].unique(return_inverse=True) for axis in {attribute.axis for attribute in asked}}
        wanted = {(a.store, a.name): numbers[a.axis][0] for a in asked}
        answers = self.ask(wanted, {(a.store, a.name): a.tensor[:1] for a in asked})
        none = torch.empty(0, dtype=torch.int64)
        return [(answers[a.store, a.name], numbers[a.axis][1]) if a in asked else (a.tensor, none) for a in attributes]

    def ask(self, wanted: Mapping[Name, Tensor | None], like: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
        """The rows of some attributes, all in one call of the store.

        Args:
            wanted: Their numbers; None for all. int64 [number of them]
            like: An example of each attribute, if it is known. [at least 0, ...]

        Raises:
            ConnectionError: the store does not answer.
            ValueError: it has no such attribute, or answers with other rows than it was asked for.
        """
        if not wanted:
            return {}
        requests = [self._request(name, numbers) for name, numbers in wanted.items()]
        names = ", ".join(f"{request.attr_name!r} of {request.group_name!r}" for request in requests)
        answers = patiently(self.feature_store, names, lambda: self.feature_store.multi_get_tensor(requests))
        if len(answers) != len(requests):
            raise ValueError(f"{self.feature_store} answers {len(requests)} requests with {len(answers)} tensors.")
        found = zip(wanted.items(), answers, strict=True)
        return {name: self._checked(name, numbers, like.get(name), rows) for (name, numbers), rows in found}

    def _request(self, name: Name, numbers: Tensor | None) -> TensorAttr:
        request = copy.copy(self.attributes[name])
        request.index = numbers
        return request

    def _checked(self, name: Name, numbers: Tensor | None, like: Tensor | None, answer: Any) -> Tensor:
        what = f"{self.feature_store} answers for {name[1]!r} of {name[0]!r}"
        if isinstance(answer, np.ndarray):
            answer = torch.from_numpy(answer)
        if not isinstance(answer, Tensor) or not answer.dim():
            raise ValueError(
                f"{what} with {type(answer).__name__}; rows are a tensor or an array. Pass exclude_keys=[{name[1]!r}] "
                f"if the type has no features."
            )
        if numbers is not None and len(answer) != len(numbers):
            raise ValueError(f"{what} with {len(answer)} rows, and was asked for {len(numbers)}.")
        if like is not None and (answer.dtype, answer.shape[1:]) != (like.dtype, like.shape[1:]):
            raise ValueError(f"{what} with {[*answer.shape[1:]]} {answer.dtype}, not {[*like.shape[1:]]} {like.dtype}.")
        return answer.cpu()

    def said_size(self, name: Name) -> int | None:
        """How many rows the store says that an attribute has; None if it does not know."""
        try:
            size = self.feature_store.get_tensor_size(self._request(name, None))
        except NotImplementedError:
            return None
        return None if size is None else int(size[0])

    def first_row(self, name: Name, num_rows: int) -> Tensor:
        """The first row of an attribute, or an empty part of it if it has no rows; others show how the store answers.

        Raises:
            ConnectionError: the store does not answer.
            ValueError: it has not that many rows, or does not answer in the order that it is asked in. [0 or 1, ...]
        """
        numbers = torch.linspace(0, max(0, num_rows - 1), _PROBED, dtype=torch.float64).long().unique()[:num_rows]
        rows = self.ask({name: numbers}, {})[name]
        again = self.ask({name: numbers[::2]}, {name: rows})[name]
        if again.shape != rows[::2].shape or not torch.allclose(again, rows[::2], rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                f"{self.feature_store} gives other rows of {name[1]!r} of {name[0]!r} for every second of "
                f"{len(numbers)} numbers alone than among all. A feature store answers with the rows that it is asked "
                f"for, in that order."
            )
        return rows[:1]
