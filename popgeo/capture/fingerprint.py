"""A hash of everything that decides a model's capture, computed without capturing it."""

import argparse
import dataclasses
import enum
import functools
import hashlib
import inspect
import platform
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from popgeo.capture.marks import marks_of
from popgeo.capture.outside_values import OutsideValues, UnknownStateError, outer_variables

# The source files of popgeo that decide the capture; callers add other files that their step depends on.
DECIDES = ("capture/**/*.py", "capture/*.csv", "ops/**/*.py")
_HOOKS_AND_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
# Types whose `repr` says everything about a value.
_READABLE = bool | int | float | complex | str | bytes | torch.dtype | torch.device | torch.Size | enum.Enum
_READABLE |= slice | types.EllipsisType  # constants of code
_PLAIN = _READABLE | Tensor | Mapping | list | tuple | set | frozenset


def fingerprint(model: nn.Module, *choices: object) -> str:
    """Return a hash of versions, of the model's classes, settings and shapes, and of other choices.

    Raises:
        UnknownStateError: the model holds an object whose content cannot be read.

    Example:
        >>> first, same, other = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(2, 4)
        >>> fingerprint(first) == fingerprint(same), fingerprint(first) == fingerprint(other)
        (True, False)
    """
    parts = [platform.python_version(), torch.__version__, metadata.version("torch_geometric"), hash_sources(*DECIDES)]
    parts += [*map(repr, choices), *_describe_model(model)]
    return hashlib.sha256("".join(f"{part}\0" for part in parts).encode()).hexdigest()


def hash_files(paths: Iterable[str]) -> dict[str, str]:
    """Return the hash of each file that exists."""
    return {path: _hash(path) for path in sorted(paths) if Path(path).is_file()}


def _hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def hash_sources(*patterns: str) -> str:
    """Return one hash of all source files of popgeo that match patterns such as `ops/**/*.py`."""
    package = Path(__file__).resolve().parent.parent
    files = [path for pattern in patterns for path in sorted(package.glob(pattern))]
    return hashlib.sha256("".join(_hash(str(path)) for path in files).encode()).hexdigest()


def _describe_model(model: nn.Module) -> Iterator[str]:
    if any(value for name, value in vars(torch_module).items() if name.endswith("hooks") and isinstance(value, dict)):
        raise UnknownStateError("hooks of all modules may hold anything")
    outside = OutsideValues(map(type, model.modules()), _describe, _is_plain)
    for name, module in model.named_modules():
        yield f"{name}: {_class(type(module))} training={module.training}"
        for attribute, value in sorted(vars(module).items()):
            if attribute not in _HOOKS_AND_TABLES and not (attribute.endswith("hooks") and not value):
                yield f"{name}.{attribute} = {_describe(value)}"
                outside.add(f"{name}.{attribute}", value)
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None and tensor._backward_hooks:
                    raise UnknownStateError(f"{key} has hooks, which may hold anything")
                yield f"{name}.{key}: {None if tensor is None else _form(tensor)}"
    yield from (f"{place} = {text}" for place, text in sorted(outside.texts.items()))


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, marks_of(tensor)


def _class(cls: type) -> str:
    """Return a hash of the name of a class and of the sources of its bases, without torch's own."""
    sources = [f"{cls.__module__}.{cls.__qualname__}"]
    for base in cls.__mro__:
        if base.__module__.split(".")[0] not in ("torch", "builtins", "abc", "typing"):
            try:
                sources.append(_hash(inspect.getfile(base)))
            except (OSError, TypeError):
                raise UnknownStateError(f"the source of {base.__qualname__} cannot be found") from None
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, _PLAIN)


def _describe(value: Any) -> str:
    if value is None or isinstance(value, _READABLE):
        return repr(value)
    if isinstance(value, Tensor):
        content = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return f"{_form(value)} {hashlib.sha256(content.numpy().tobytes()).hexdigest()}"
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return _describe(vars(value))
    if isinstance(value, Mapping):
        return repr({_describe(key): _describe(item) for key, item in value.items()})
    if isinstance(value, list | tuple | set | frozenset):
        items = map(_describe, value)
        return repr(list(items) if isinstance(value, list | tuple) else sorted(items))
    if isinstance(value, types.FunctionType):
        cells = [*map(_describe, outer_variables(value).values())]
        return f"{_describe(value.__code__)} {cells} {_describe(value.__defaults__)}"
    if isinstance(value, types.CodeType):
        return f"{value.co_code!r} {value.co_names} {_describe(value.co_consts)}"
    if isinstance(value, type | types.BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, nn.Module):
        return " ".join(_describe_model(value))
    if dataclasses.is_dataclass(value):
        return f"{_class(type(value))} {_describe({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})}"
    raise UnknownStateError(f"{type(value).__qualname__} cannot be read")
