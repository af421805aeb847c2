"""Reports as JSON that other programs, and later versions, can read."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from popgeo.capture.operations import OPERATIONS, name_of
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.report.figures import Figures


def dumps(report: Figures, version: tuple[str, int], derived: tuple[str, ...], left_out: tuple[str, ...] = ()) -> str:
    """A report with the name and the version of its format.

    Args:
        report: All of its fields are written.
        version: The name of the format, and its version.
        derived: Numbers that follow from the fields, for other programs; reading works them out anew.
        left_out: Fields that are not written.
    """
    content = {"schema": version[0], "version": version[1]}
    content |= {part.name: plain(getattr(report, part.name)) for part in fields(report) if part.name not in left_out}
    return json.dumps(content | {name: plain(getattr(report, name)) for name in derived}, allow_nan=False)


def loads(kind: type[Figures], version: tuple[str, int], text: str) -> dict[str, Any]:
    """The fields of the report behind a text, as its class takes them.

    Raises:
        ValueError: it is no report of this kind, or of another version.
    """
    what = kind.__name__
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"No {what.lower()}: {error}. Pass what {what}.to_json returned.") from error
    found = (content.get("schema"), content.get("version")) if isinstance(content, dict) else (type(content), None)
    if found != version:
        raise ValueError(
            f"No {what.lower()} of this version: found {found}, expected {version}. Compile or plan the step anew."
        )
    given = _fields(kind, content)
    return given | {"costs": tuple(map(_in_words_of_today, given["costs"]))}


def plain(part: Any) -> Any:
    """A value in what JSON has: dataclasses as their fields, arrays and tuples as lists, members as their values."""
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: plain(getattr(part, field.name)) for field in fields(part)}
    if isinstance(part, Enum):
        return part.value
    if isinstance(part, np.ndarray | np.generic):
        return part.tolist()
    if isinstance(part, Mapping):
        return {str(key): plain(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [plain(item) for item in part]
    return part


def restored(kind: Any, content: Any) -> Any:
    """The value of a declared type that `plain` was made of.

    Example:
        >>> restored(tuple[int, ...] | None, [1, 2]), restored(Mapping[int, float], {"4": 0.5})
        ((1, 2), {4: 0.5})
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:  # JSON tells the choices apart: null, a list, an object, or anything else
        if content is None:
            return None
        of_lists = [one for one in inner if get_origin(one) is tuple]
        others = [one for one in inner if one not in (*of_lists, NoneType)]
        return restored((of_lists if isinstance(content, list) else others)[0], content)
    if origin is tuple:
        return tuple(restored(inner[0], item) for item in content)
    if origin is not None and issubclass(origin, Mapping):
        return {inner[0](key): restored(inner[1], value) for key, value in content.items()}
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return kind(**_fields(kind, content))
    if kind is np.ndarray:
        return np.array(content, dtype=np.int64)
    return kind(content) if isinstance(kind, type) and issubclass(kind, Enum) else content


def _fields(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    types = get_type_hints(kind)
    names = [part.name for part in fields(kind) if part.name in content]
    return {name: restored(types[name], content[name]) for name in names}


def _in_words_of_today(cost: OpCost) -> OpCost:
    """Older texts have other families."""
    row = OPERATIONS.get(name_of(cost.target))
    return cost if row is None else replace(cost, plan=replace(cost.plan, family=row.family))
