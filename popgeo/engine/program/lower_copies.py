"""Lowers operations that only move elements or fill memory, and conversions of types."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Number
from popgeo.engine.program.lower_elements import CODES, computed
from popgeo.engine.program.native_call import NativeCall
from popgeo.engine.program.strided import Area, Element, constant, elements_call, lowers, require

_COPY = CODES.index("copy")


def copied(out: Tensor, source: Tensor) -> Element:
    """Return the copy of a tensor, with its elements in the type of `out`."""
    moved = out.dtype is source.dtype
    return Element(code=_COPY, kind=0, out=Area.of(out, moved), operands=[Area.of(source, moved)])


def _moves(elements: Sequence[Element], whole: Sequence[Tensor], held: Any = ()) -> NativeCall:
    """Return the call of several moves, none of which reads what another one writes."""
    areas = [Area.of(one, moved=True) for one in whole]
    reads = [operand for one in elements for operand in one.operands]
    require(not any(area.overlaps(read) or area.address == read.address for area in areas for read in reads))
    return elements_call(elements, held=held)


@lowers(*(f"aten.{name}.default" for name in ("clone", "_to_copy", "contiguous", "copy", "copy_")))
def lower_copy(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower a copy, also into a tensor; a new result has the layout that torch chose at the capture."""
    require(results[0].shape == given["self"].shape)
    return elements_call([copied(results[0], given.get("src", given["self"]))])


def _filled(number: Any, results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    return computed("copy", results[0].dtype, results[0], [number])


for _number, _names in ((0, "zeros zeros_like new_zeros zero zero_"), (1, "ones ones_like new_ones")):
    lowers(*(f"aten.{name}.default" for name in _names.split()))(partial(_filled, _number))


@lowers(
    *(f"aten.{name}.default" for name in ("full", "full_like", "new_full")),
    *("aten.fill.Scalar", "aten.fill.Tensor", "aten.fill_.Scalar", "aten.fill_.Tensor"),
)
def lower_fill(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower a fill with a number."""
    return _filled(given["fill_value"] if "fill_value" in given else given["value"], results, given)


@lowers(*(f"aten.{name}.default" for name in ("empty_like", "new_empty", "empty_strided", "new_empty_strided")))
def lower_empty(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the creation of a tensor without values: nothing is left to do."""
    return elements_call([])


@lowers("aten.cat.default")
def lower_cat(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower a concatenation; torch leaves out tensors without elements."""
    elements, start, dim = [], 0, given["dim"]
    for tensor in given["tensors"]:
        if tensor.numel():
            elements.append(copied(results[0].narrow(dim, start, tensor.shape[dim]), tensor))
            start += tensor.shape[dim]
    return _moves(elements, results)


@lowers("aten.stack.default")
def lower_stack(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower a stack of tensors along a new dimension."""
    dim = given["dim"]
    return _moves([copied(results[0].select(dim, k), one) for k, one in enumerate(given["tensors"])], results)


@lowers("aten.select_backward.default", "aten.slice_backward.default")
def lower_part_backward(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the gradient of a part: zeros around the gradient of the part."""
    return _with_part(results, given, constant(0), given["grad_output"])


@lowers("aten.select_scatter.default", "aten.slice_scatter.default")
def lower_part(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the replacement of a part."""
    return _with_part(results, given, given["self"], given["src"])


def _with_part(results: list[Tensor], given: Mapping[str, Any], around: Tensor, part: Tensor) -> NativeCall:
    out, dim = results[0], given["dim"]
    if "index" in given:
        place = out.select(dim, given["index"])
    else:
        place = torch.ops.aten.slice.Tensor(out, dim, given["start"], given["end"], given["step"])
    require(place.shape == part.shape)
    return _moves([copied(out, around), copied(place, part)], results, around)


@lowers("aten.constant_pad_nd.default")
def lower_pad(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower padding with a number; negative padding leaves out elements."""
    out, inner, pad = results[0], given["self"], given["pad"]
    require(not isinstance(given["value"], Number))
    number = constant(given["value"])
    place = out
    for k in range(len(pad) // 2):
        dim = out.dim() - 1 - k
        before, after = pad[2 * k], pad[2 * k + 1]
        inner = inner.narrow(dim, max(-before, 0), inner.shape[dim] - max(-before, 0) - max(-after, 0))
        place = place.narrow(dim, max(before, 0), inner.shape[dim])
    return _moves([copied(out, number), copied(place, inner)], results, number)


@lowers("aten.flip.default")
def lower_flip(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the reversal of dimensions."""
    out, source = (Area.of(one, moved=True) for one in (results[0], given["self"]))
    return elements_call([Element(code=_COPY, kind=0, out=out, operands=[source.flipped(given["dims"])])])


@lowers("aten.repeat.default")
def lower_repeat(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower repetitions along dimensions."""
    out, source, repeats = results[0], given["self"], given["repeats"]
    require(out.is_contiguous())
    missing = len(repeats) - source.dim()
    own = Area.of(source, moved=True).expanded((1,) * missing + tuple(source.shape))
    steps = [step for pair in zip([0] * len(repeats), own.steps, strict=True) for step in pair]
    sizes = [n for size in own.shape for n in (1, size)]
    apart = out.view([n for pair in zip(repeats, own.shape, strict=True) for n in pair])
    operand = replace(own, shape=tuple(sizes), steps=tuple(steps))
    return elements_call([Element(code=_COPY, kind=0, out=Area.of(apart, moved=True), operands=[operand])])
