"""Requests for rows of a feature store, one per batch, type and attribute, with checks of the answers."""

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

_WAITS = (0.1, 0.4)  # seconds before a failed request is repeated
_MAKES_NO_SENSE = (LookupError, TypeError, ValueError, AttributeError, NotImplementedError)
_EDGES = {"edge_index", "adj_t", "adj"}
_PROBED = 4096  # rows; a database may answer many rows in parts and in a wrong order
Name = tuple[StoreKey, str]
"""A node or edge type, and the name of an attribute."""


def stays_in_store(attribute: Attribute) -> bool:
    """Check whether an attribute stays in a feature store. Its values are then one row, expanded to all rows."""
    return attribute.is_tensor and len(attribute.tensor) > 1 and attribute.tensor.stride(0) == 0


def patiently(store: Any, names: str, request: Callable[[], Any]) -> Any:
    """Return the answer of a store. Repeat a failed request twice, unless the error shows that the request is invalid.

    Args:
        store: The store.
        names: The requested attributes or edges, for errors.
        request: Makes the request.

    Raises:
        ConnectionError: the store does not answer.
        ValueError: the store lacks a requested attribute or row.
    """
    for wait in (*_WAITS, None):
        try:
            return request()
        except DistError:
            raise  # other processes take part, so one process cannot repeat it
        except _MAKES_NO_SENSE as error:
            raise ValueError(
                f"{store} lists {names}, but lacks a part of it: {error!r}. Correct edges that lead to missing rows, "
                f"and leave out a missing attribute with exclude_keys."
            ) from error
        except Exception as error:  # each client of a database has its own errors
            if wait is None:
                raise ConnectionError(
                    f"{store} was asked {len(_WAITS) + 1} times for {names}: {error!r}. Once it is back, make the "
                    f"loader again, or loader.load_state_dict(loader.state_dict()) to continue with this batch."
                ) from error
            time.sleep(wait)
    raise AssertionError  # the last turn returns or raises


class ReadOnlyFeatures(FeatureStore):
    """A read-only feature store: attributes cannot be added.

    Attributes:
        columns: Data of each attribute, by the node or edge type and the name.
    """

    columns: dict[Name, Any]

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return all attributes."""
        return [TensorAttr(group_name=key, attr_name=name) for key, name in self.columns]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise ValueError(f"{type(self).__name__} takes no new attribute; make it again, with {attr.attr_name!r}.")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self.columns.pop((attr.group_name, attr.attr_name), None) is not None


class FeatureRows:
    """A reader of rows from a feature store.

    Each row is requested once, in ascending order, for any order of a batch. So a store on disk reads forwards, and a
    database that sorts its answer by number still answers correctly. A failed request is repeated twice.

    Args:
        feature_store: The store.
        attributes: The store's own key of each attribute.
    """

    def __init__(self, feature_store: FeatureStore, attributes: Mapping[Name, TensorAttr]) -> None:
        self.feature_store, self.attributes = feature_store, attributes
        # If several processes contribute to each answer, each of them makes every request, even for no rows.
        self.is_collective = bool(getattr(feature_store, "is_collective", False))

    @classmethod
    def listed(cls, feature_store: FeatureStore) -> "FeatureRows":
        """Return a reader for all attributes that a store lists."""
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
        """Return the values of each attribute, and the position of each row of a batch among them.

        Args:
            attributes: Attributes of nodes and edges.
            rows: Numbers of the nodes and edges of each type. int64 [number of rows]

        Raises:
            ConnectionError: the store does not answer.
            ValueError: the answer does not match the request.
        """
        asked = [attribute for attribute in attributes if len(rows[attribute.axis]) or self.is_collective]
        numbers = {axis: rows[axis].unique(return_inverse=True) for axis in {attribute.axis for attribute in asked}}
        wanted = {(a.store, a.name): numbers[a.axis][0] for a in asked}
        answers = self.ask(wanted, {(a.store, a.name): a.tensor[:1] for a in asked})
        none = torch.empty(0, dtype=torch.int64)
        return [(answers[a.store, a.name], numbers[a.axis][1]) if a in asked else (a.tensor, none) for a in attributes]

    def ask(self, wanted: Mapping[Name, Tensor | None], like: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
        """Return rows of some attributes, by one call of the store.

        Args:
            wanted: Numbers of the rows of each attribute; None for all. int64 [number of rows]
            like: Example of each attribute, if it is known. [at least 0, ...]

        Raises:
            ConnectionError: the store does not answer.
            ValueError: the store lacks an attribute, or the answer does not match the request.
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
        """Return the answer to a request as a tensor, or raise if it does not match the request."""
        what = f"{self.feature_store} answers for {name[1]!r} of {name[0]!r}"
        if isinstance(answer, np.ndarray):
            answer = torch.from_numpy(answer)
        if not isinstance(answer, Tensor) or not answer.dim():
            raise ValueError(
                f"{what} with {type(answer).__name__}; rows are a tensor or an array. Pass exclude_keys=[{name[1]!r}] "
                f"if the type has no features."
            )
        if numbers is not None and len(answer) != len(numbers):
            raise ValueError(f"{what} with {len(answer)} rows to a request for {len(numbers)}.")
        if like is not None and (answer.dtype, answer.shape[1:]) != (like.dtype, like.shape[1:]):
            raise ValueError(f"{what} with {[*answer.shape[1:]]} {answer.dtype}, not {[*like.shape[1:]]} {like.dtype}.")
        return answer.cpu()

    def said_size(self, name: Name) -> int | None:
        """Return the number of rows of an attribute in the store; None if the store does not know it."""
        try:
            size = self.feature_store.get_tensor_size(self._request(name, None))
        except NotImplementedError:
            return None
        return None if size is None else int(size[0])

    def first_row(self, name: Name, num_rows: int) -> Tensor:
        """Return the first row of an attribute, if there is one, after a check of the store's answers, [0 or 1, ...].

        Raises:
            ConnectionError: the store does not answer.
            ValueError: rows are missing, or answers are not in the order of the request.
        """
        numbers = torch.linspace(0, max(0, num_rows - 1), _PROBED, dtype=torch.float64).long().unique()[:num_rows]
        rows = self.ask({name: numbers}, {})[name]
        again = self.ask({name: numbers[::2]}, {name: rows})[name]
        if again.shape != rows[::2].shape or not torch.allclose(again, rows[::2], rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                f"{self.feature_store} gives other rows of {name[1]!r} of {name[0]!r} if half of "
                f"{len(numbers)} row numbers are requested instead of all. A feature store must answer with the "
                f"requested rows, in the order of the request."
            )
        return rows[:1]
