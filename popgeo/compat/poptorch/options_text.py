"""Options from a file or an environment variable: calls of setters, read without running anything else."""

import ast
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from popgeo.compat.poptorch import enums


class ConfigFileError(Exception):
    """A line of a configuration file is not a call of a setter."""


def apply_file(options: Any, path: str | os.PathLike[str]) -> None:
    """Runs the setters that a file names, one a line, as `deviceIterations(4)`; `#` starts a comment.

    Raises:
        ConfigFileError: a line is something else; the message has its number and its text.
    """
    calls = []
    with open(path) as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            text = f"options.{line}"
            try:
                if line and not line.startswith("#"):
                    calls.append((number, text, ast.parse(text, mode="eval").body))
            except SyntaxError as error:
                raise _refusal(f"SyntaxError at line {number}", path, error.msg, text) from error
    for number, text, call in calls:
        try:
            _value_of(call, {"options": options, "poptorch": _Names()})
        except _NoCall as error:
            raise _refusal(f"Line {number}", path, str(error), text) from None


def apply_json(options: Any, text: str) -> None:
    """Runs the setters that a dictionary names: dots lead into groups, a list holds several arguments.

    Raises:
        ValueError: the text is not a dictionary in JSON, or a name no setter.
    """
    asked = json.loads(text)
    if not isinstance(asked, dict):
        raise ValueError(f"Options in JSON are a dictionary of setters, not {type(asked).__name__}.")
    for name, arguments in asked.items():
        setter: Any = options
        for part in name.split("."):
            setter = getattr(setter, part, None)
        if not callable(setter):
            raise ValueError(f"Options in JSON name {name!r}, which is not a setter of poptorch.Options.")
        arguments = arguments if isinstance(arguments, list) else [arguments]
        setter(*map(_member_or_same, arguments))


def _refusal(where: str, path: str | os.PathLike[str], detail: str, text: str) -> ConfigFileError:
    return ConfigFileError(f"{where} of {os.path.basename(path)}: {detail}\n> {text}")


def _member_or_same(argument: Any) -> Any:
    """The member of an enum that a text such as `ConnectionType.Never` names; anything else as it is."""
    if not isinstance(argument, str):
        return argument
    kind, _, member = argument.removeprefix("poptorch.").partition(".")
    return getattr(getattr(enums, kind, None), member, argument) if member else argument


class _NoCall(Exception):
    """A part of a line that is neither a setter, an argument nor one of PopTorch's names."""


class _Names:
    """PopTorch's classes and enums, which a file may use; found when asked for, since their module imports this one."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(sys.modules[__package__ or ""], name, None)
        if not isinstance(found, type):
            raise _NoCall(f"`poptorch.{name}` is not a class of PopTorch")
        return found


def _value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a literal, of a name among `names` or its attribute, or of a call."""
    match node:
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Attribute() if not node.attr.startswith("__"):
            return getattr(_value_of(node.value, names), node.attr)
        case ast.Call():
            arguments = [_value_of(part, names) for part in node.args]
            named = {part.arg: _value_of(part.value, names) for part in node.keywords if part.arg is not None}
            return _value_of(node.func, names)(*arguments, **named)
        case ast.List() | ast.Tuple():
            return [_value_of(part, names) for part in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _NoCall(f"`{ast.unparse(node)}` is neither a setter of poptorch.Options nor an argument") from None
