"""Reports as JSON that other programs, and later versions, can read."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from popgeo.capture.operations import OPERATIONS, name_of
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.report.figures import Figures

_BEYOND = 2**63  # cycles, bytes and seconds of a report are below, and not below zero


def dumps(report: Figures, version: tuple[str, int], derived: tuple[str, ...]) -> str:
    """A report with the name and the version of its format.

    Args:
        report: Its fields are written as a copy gets them.
        version: The name of the format, and its version.
        derived: Numbers that follow from the fields, for other programs; reading works them out again.
    """
    content = {"schema": version[0], "version": version[1]}
    content |= report.__getstate__() | {name: getattr(report, name) for name in derived}
    return json.dumps(content, allow_nan=False, default=_plain)


def loads(kind: type[Figures], version: tuple[str, int], text: str) -> dict[str, Any]:
    """The fields of the report behind a text, each of which has the type that its class declares.

    Raises:
        ValueError: it is not a report of this kind, or of another version; the message names the field.
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
    return given | {"costs": tuple(map(_in_words_of_today, given.get("costs", ())))}


def _plain(part: Any) -> Any:
    """What JSON does not have: a dataclass as its fields, a mapping as a dictionary, an array as lists."""
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, np.ndarray | np.generic):
        return part.tolist()
    raise TypeError(f"A report's JSON cannot hold {part!r}, a {type(part).__name__}.")


def restored(kind: Any, content: Any, where: str = "it") -> Any:
    """The value of a declared type that a part of the JSON was made of.

    Raises:
        ValueError: it was made of something else, or is a number that no report has; the message names its place.

    Example:
        >>> restored(tuple[int, ...] | None, [1, 2]), restored(Mapping[int, float], {"4": 0.5})
        ((1, 2), {4: 0.5})
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:  # JSON tells the choices apart: null, a list, an object, or anything else
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
    types = get_type_hints(kind)
    for part in fields(kind):
        if part.name not in content and part.default is part.default_factory is MISSING:
            raise ValueError(f"{where} has no {part.name}, as every report has")
    names = [part.name for part in fields(kind) if part.name in content]
    return {name: restored(types[name], content[name], f"{where}.{name}") for name in names}


def _in_words_of_today(cost: OpCost) -> OpCost:
    """Older texts have other families."""
    row = OPERATIONS.get(name_of(cost.target))
    return cost if row is None else replace(cost, plan=replace(cost.plan, family=row.family))
