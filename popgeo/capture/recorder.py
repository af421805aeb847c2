"""Writes down each operation that torch runs, as an `OpGraph`."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.hooks import RemovableHandle

from popgeo.capture import dynamic_shapes, model_lines
from popgeo.capture.dynamic_shapes import Problem
from popgeo.capture.op_graph import BlockMark, Input, Op, OpGraph, Ref, Value

# These change running statistics without saying so in their schema: positions of the arguments, and of the flag.
_HIDDEN_WRITES = {"aten.native_batch_norm.default": ((3, 4), 5), "aten.cudnn_batch_norm.default": ((3, 4), 5)}

# These change no element, but what the tensor looks at, as the operation on the right does.
_VIEWS_IN_PLACE = {
    "aten.squeeze_.default": "aten.squeeze.default",
    "aten.squeeze_.dim": "aten.squeeze.dim",
    "aten.squeeze_.dims": "aten.squeeze.dims",
    "aten.unsqueeze_.default": "aten.unsqueeze.default",
    "aten.t_.default": "aten.t.default",
    "aten.transpose_.default": "aten.transpose.int",
    "aten.as_strided_.default": "aten.as_strided.default",
    "aten.detach_.default": "aten.detach.default",
}

_PAGE = ("_ops", "_values", "_constants", "_inputs", "_numbers", "_kept", "_storages")  # what is written down so far


class Recorder(TorchDispatchMode):
    """Writes down each operation below autograd, so that forward, backward and updates look alike.

    It works on fake tensors, which have a shape and no data, and on real ones.

    Args:
        stop: Code of the function in which the model starts; lines above it are not the model's.
        on_problem: Called with what depends on data; it may raise.
        phase: What to call what comes first.
        keeps_state: Refuse changes of tensors that are no inputs, because they would be lost after the step.
        on_result: Called after each operation with it, its arguments and its result.
        instead: Called in the place of an operation whose result depends on data; by default it runs.
    """

    def __init__(
        self,
        stop: CodeType,
        on_problem: Callable[[Problem], None],
        phase: str = "forward",
        keeps_state: bool = True,
        on_result: Callable[..., None] = lambda *of_an_operation: None,
        instead: Callable[..., Any] = lambda func, args, kwargs: func(*args, **kwargs),
    ) -> None:
        super().__init__()
        self._on_result, self._instead = on_result, instead
        self.phase, self._keeps_state = phase, keeps_state
        self.modules: list[str] = []
        self.marked: list[Tensor] = []
        self.on_operation: Callable[[], object] = lambda: None
        self.files: set[str] = set()
        self._stop, self._on_problem = stop, on_problem
        self._ops: list[Op] = []
        self._values: list[Value] = []
        self._constants: dict[int, Tensor] = {}
        self._inputs: dict[Input, int] = {}
        self._numbers: dict[int, int] = {}
        self._kept: list[
            Tensor
        ] = []  # a number is found by the tensor's id, so none may be freed and its id used again
        self._storages: dict[int, int] = {}
        self._forward_of: dict[int, tuple[str, str, BlockMark | None]] = {}
        self.block: BlockMark | None = None
        self.unnamed_blocks = 0
        self._paused = self._in_body = False

    def add_input(self, given: Input, tensor: Tensor) -> None:
        """Says what a tensor is that each run is given."""
        self._inputs[given] = self._new_value(tensor, producer=None)

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's value; a tensor that nothing made is a constant."""
        known = self._numbers.get(id(tensor))
        if known is None:
            known = self._new_value(tensor, producer=None)
            self._constants[known] = tensor
        return known

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether an operation has read this tensor, which nothing made."""
        return self._numbers.get(id(tensor)) in self._constants

    def changed(self, given: Mapping[Input, Tensor]) -> set[Input]:
        """The inputs whose elements some operation changes in place.

        Raises:
            ValueError: an input is given another shape in place, or other memory, as the caller's tensor would not be.
        """
        for one, tensor in given.items():
            value = self._values[self._inputs[one]]
            memory = self._storages.get(tensor.untyped_storage()._cdata)
            if self._numbers[id(tensor)] != self._inputs[one] or memory != value.storage:
                raise ValueError(
                    f"The model gives {one.name} another shape or other memory, as t_() and an assignment to .data do; "
                    "a compiled step keeps what it is given where it is. Change it with copy_(), or make a new tensor."
                )
        written = {self._values[v].storage for op in self._ops for v in op.writes}
        return {one for one in given if self._values[self._inputs[one]].storage in written}

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Begins a graph of its own, as the body of a loop is, and goes on with the one before after the block.

        What the block uses from outside is a constant of that graph, which `outside` tells.
        """
        before = {name: getattr(self, name) for name in _PAGE} | {"_in_body": self._in_body}
        vars(self).update({name: type(getattr(self, name))() for name in _PAGE}, _in_body=True)
        try:
            yield
        finally:
            vars(self).update(before)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Writes nothing down while the block runs."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def outside(self) -> dict[int, Tensor]:
        """What operations have read that nothing made, by value."""
        return dict(self._constants)

    def is_fresh(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that an operation made."""
        known = self._numbers.get(id(tensor))
        given = {self._values[v].storage for v in (*self._inputs.values(), *self._constants)}
        return known is not None and self._values[known].storage not in given

    def add(self, target: str, args: tuple[Any, ...], results: Sequence[Tensor], bodies: tuple[OpGraph, ...]) -> None:
        """Writes down an operation with graphs of its own, which torch does not know."""
        recorded = _with_refs(args, self.number)
        outputs = tuple(self._new_value(tensor, producer=len(self._ops)) for tensor in results)
        module, line, block = self._place()
        self._ops.append(
            Op(
                target=target,
                args=recorded,
                outputs=outputs,
                phase=self.phase,
                module=module,
                source=line,
                bodies=bodies,
                block=block,
            )
        )
        self.on_operation()

    def depends_on(self, tensor: Tensor) -> set[int]:
        """The numbers of the values that a tensor was worked out from, its own included."""
        needed = {self.number(tensor)}
        memory = {self._values[v].storage for v in needed}
        for op in reversed(self._ops):
            if {*op.makes()} & needed or any(self._values[v].storage in memory for v in op.writes):
                needed.update(op.reads())
                memory.update(self._values[v].storage for v in op.reads())
        return needed

    @contextlib.contextmanager
    def follow_modules(self, module: nn.Module) -> Iterator[None]:
        """Keeps `modules` at the names of the submodules that are running, while the block runs."""
        hooks: list[RemovableHandle] = []
        for name, submodule in module.named_modules():

            def enter(module: nn.Module, args: Any, name: str = name) -> None:
                self.modules.append(name)

            def leave(module: nn.Module, args: Any, result: Any) -> None:
                self.modules.pop()

            hooks.append(submodule.register_forward_pre_hook(enter))
            hooks.append(submodule.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def graph(self, outputs: Sequence[Tensor | None]) -> OpGraph:
        """What was written down, returning these tensors."""
        numbers = tuple(None if tensor is None else self.number(tensor) for tensor in outputs)
        return OpGraph(
            ops=tuple(self._ops),
            values=tuple(self._values),
            inputs=dict(self._inputs),
            outputs=numbers,
            constants={v: _real(tensor) for v, tensor in self._constants.items()},
        )

    def written(self) -> tuple[list[Op], list[Value], dict[Input, int]]:
        """Operations, values and inputs so far; what they use from outside has no maker yet."""
        return list(self._ops), list(self._values), dict(self._inputs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if self._paused:
            return func(*args, **keywords)
        if dynamic_shapes.is_dynamic(func, args, keywords):
            self._report(func)
            result = self._instead(func, args, keywords)
        elif not makes_tensors(func) and not any(isinstance(arg, FakeTensor) for arg in args):
            with unset_fake_temporarily():  # a number of a tensor from outside, which a fake tensor could not tell
                result = func(*args, **keywords)
        else:
            result = func(*args, **keywords)
            self._on_result(func, args, keywords, result)
        if makes_tensors(func):
            self._write_down(func, args, keywords, result)
        return result

    def _write_down(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        index = len(self._ops)
        name = target(func)
        recorded_args = _with_refs(args, self.number)
        recorded_kwargs = {key: _with_refs(arg, self.number) for key, arg in kwargs.items()}
        writes = tuple(self.number(tensor) for tensor in _written(func, name, args, kwargs))
        if name in _VIEWS_IN_PLACE:  # from here on the tensor stands for a view of what it was
            name, writes = _VIEWS_IN_PLACE[name], ()
            del self._numbers[id(result)]
        self._refuse_other_layouts(func, args, kwargs)
        if self._keeps_state:
            self._refuse_writes_to_constants(func, writes)
        results = result if isinstance(result, tuple | list) else (result,)
        outputs = tuple(self._output(tensor, index) if isinstance(tensor, Tensor) else None for tensor in results)
        module, line, block = self._place()
        op = Op(
            target=name,
            args=recorded_args,
            kwargs=recorded_kwargs,
            outputs=outputs,
            writes=writes,
            phase=self.phase,
            module=module,
            source=line,
            block=block,
        )
        self._ops.append(op)
        self.on_operation()
        if name == "popgeo.identity_loss.default" and not self._in_body:
            self.marked.append(result)

    def _output(self, tensor: Tensor, producer: int) -> int:
        known = self._numbers.get(id(tensor))
        return self._new_value(tensor, producer) if known is None else known

    def _new_value(self, tensor: Tensor, producer: int | None) -> int:
        if tensor.layout is not torch.strided:
            raise ValueError(
                f"A {tensor.layout} tensor has no fixed layout; convert it to a dense one or to an edge_index."
            )
        storage = self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))
        value = Value(
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
            dtype=tensor.dtype,
            storage=storage,
            producer=producer,
        )
        self._numbers[id(tensor)] = len(self._values)
        self._values.append(value)
        self._kept.append(tensor)
        return len(self._values) - 1

    def _place(self) -> tuple[str, str, BlockMark | None]:
        """Submodule, line and block; in the backward pass those of the forward operation that it differentiates."""
        if self.phase == "backward":
            node = torch._C._current_autograd_node()
            nowhere = "", "", None
            return self._forward_of.get(node._sequence_nr(), nowhere) if node is not None else nowhere
        self.files |= model_lines.files(self._stop)
        module = self.modules[-1] if self.modules else ""
        place = module, model_lines.describe(model_lines.model_frame(self._stop)), self.block
        # Autograd numbers its node just before it runs the operation; what needs no node leaves the number as it was.
        self._forward_of.setdefault(torch.autograd._get_sequence_nr() - 1, place)  # type: ignore[attr-defined]
        return place

    def _report(self, func: Any) -> None:
        module = self.modules[-1] if self.modules else ""
        name = func._schema.name.removeprefix("aten::")
        line = model_lines.describe(model_lines.model_frame(self._stop))
        self._on_problem(
            Problem(name, line, module, dynamic_shapes.remedy(name, dynamic_shapes.callers(sys._getframe(2))))
        )

    def _refuse_other_layouts(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Where a tensor gets another shape or other memory, what has its number is no longer that tensor."""
        for tensor in _written(func, target(func), args, kwargs):
            known = self._numbers.get(id(tensor))
            if func._schema.name == "aten::set_" or (known is not None and tensor.shape != self._values[known].shape):
                line = model_lines.describe(model_lines.model_frame(self._stop))
                raise ValueError(
                    f"{line}: {func._schema.name} gives a tensor another shape or other memory in place. Make a new "
                    "tensor instead, or pass out= one of the result's shape."
                )

    def _refuse_writes_to_constants(self, func: Any, writes: Sequence[int]) -> None:
        written = {self._values[v].storage for v in writes}
        if written and any(self._values[v].storage in written for v in self._constants):
            line = model_lines.describe(model_lines.model_frame(self._stop))
            outside = "parameter, buffer nor result. Make it a buffer with register_buffer, so that its state is kept."
            if self._in_body:
                outside = "input of the loop or branch nor made in it. Pass it as an input, and use the result."
            raise ValueError(f"{line}: {func._schema.name} changes what is neither {outside}")


def active_recorder() -> Recorder | None:
    """What writes down the operations of now; None outside of a capture."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, Recorder)), None)


def _real(tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor):
        raise ValueError(
            "A tensor of another capture is used; pass it as an argument or make it a buffer of the model."
        )
    return tensor.detach()


@functools.cache
def target(func: Any) -> str:
    """The name of an operation in an `OpGraph`."""
    namespace, name = func._schema.name.split("::")
    return f"{namespace}.{name}.{func._overloadname}"


@functools.cache
def makes_tensors(func: Any) -> bool:
    """Whether an operation returns or changes tensors, as opposed to reading a number."""
    return any("Tensor" in str(item.type) for item in func._schema.returns) or any(
        arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments
    )


def _written(func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    written: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            written += [t for t in (given if isinstance(given, list | tuple) else [given]) if isinstance(t, Tensor)]
    if name in _HIDDEN_WRITES and args[_HIDDEN_WRITES[name][1]]:
        written += [args[p] for p in _HIDDEN_WRITES[name][0] if isinstance(args[p], Tensor)]
    return written


def _with_refs(argument: Any, number: Callable[[Tensor], int]) -> Any:
    if isinstance(argument, Tensor):
        return Ref(number(argument))
    if isinstance(argument, list | tuple):
        return type(argument)(_with_refs(item, number) for item in argument)
    return argument
