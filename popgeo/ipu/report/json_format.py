"""Reports as JSON for other programs and later versions."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from popgeo.capture.operations import OPERATIONS, name_of
from popgeo.ipu.cost.plan import OpCost

_BEYOND = 2**63  # the cycles, bytes and seconds of a report are at least 0 and below this


def dumps(content: Mapping[str, Any], version: tuple[str, int]) -> str:
    """Return the content of a report as JSON.

    Args:
        content: Fields of the report, and derived numbers for other programs; `loads` ignores the derived numbers.
        version: The name and the version of the format.
    """
    return json.dumps({"schema": version[0], "version": version[1], **content}, allow_nan=False, default=_plain)


def loads(kind: type, version: tuple[str, int], text: str) -> dict[str, Any]:
    """Return the fields of the report in a text, each with the type that the report's class declares.

    Args:
        kind: Class of the report.
        version: The expected name and version of the format.
        text: Text that `dumps` wrote.

    Raises:
        ValueError: the text is no report of this kind, or has another version; the message names the field.
    """
    what = kind.__name__
    try:
        content = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"No {what.lower()}: {error}. Pass what {what}.to_json returned.") from error
    found = (content.get("schema"), content.get("version")) if isinstance(content, dict) else (type(content), None)
    if found != version:
        raise ValueError(
            f"No {what.lower()} of this version: found {found}, expected {version}. Compile or plan the step again."
        )
    given = _fields(kind, content, what.lower())
    return given | {"costs": tuple(map(_with_current_family, given.get("costs", ())))}


def _plain(part: Any) -> Any:
    """Return a value in JSON's types: a dataclass as its fields, a mapping as a dictionary, an array as lists."""
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, np.ndarray | np.generic):
        return part.tolist()
    raise TypeError(f"A report's JSON cannot hold {part!r}, a {type(part).__name__}.")


def restored(kind: Any, content: Any, where: str = "it") -> Any:
    """Return the value of a declared type that JSON content represents.

    Raises:
        ValueError: the content is of another type, or a number outside the range of reports; the message names its
            place.

    Example:
        >>> restored(tuple[int, ...] | None, [1, 2]), restored(Mapping[int, float], {"4": 0.5})
        ((1, 2), {4: 0.5})
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:  # the kind of JSON decides: null, a list, an object, or anything else
        if content is None and NoneType in inner:
            return None
        fitting = [
            one for one in inner if one is not NoneType and (get_origin(one) is tuple) == isinstance(content, list)
        ]
        return restored(fitting[0] if fitting else inner[0], content, where)
    if origin is tuple and isinstance(content, list):
        return tuple(restored(inner[0], item, f"{where}[{place}]") for place, item in enumerate(content))
    if origin is not None and isinstance(content, dict) and issubclass(origin, Mapping):
        keys = {key: int(key) if inner[0] is int and key.isdecimal() else key for key in content}
        return {
            restored(inner[0], keys[key], where): restored(inner[1], held, f"{where}[{key!r}]")
            for key, held in content.items()
        }
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(content, dict):
        return kind(**_fields(kind, content, where))
    if kind is np.ndarray and isinstance(content, list):
        return np.array(restored(tuple[int, ...], content, where), dtype=np.int64)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(content)
    if kind in (str, bool, Any) and (kind is Any or type(content) is kind):
        return content
    if kind in (int, float) and type(content) in {int, kind} and 0 <= content < _BEYOND:
        return content
    raise ValueError(f"{where} is {content!r:.60}, which is not a {getattr(kind, '__name__', kind)} as a report has it")


def _fields(kind: type, content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a class from JSON content. Fields with a default may be missing."""
    types = get_type_hints(kind)
    for part in fields(kind):
        if part.name not in content and part.default is part.default_factory is MISSING:
            raise ValueError(f"{where} has no {part.name}, as every report has")
    names = [part.name for part in fields(kind) if part.name in content]
    return {name: restored(types[name], content[name], f"{where}.{name}") for name in names}


def _with_current_family(cost: OpCost) -> OpCost:
    """Return the cost with the operation's current family; older texts have other families."""
    row = OPERATIONS.get(name_of(cost.target))
    return cost if row is None else replace(cost, plan=replace(cost.plan, family=row.family))
