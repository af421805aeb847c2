"""A mode that records each operation of torch in an `OpGraph`."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from popgeo.capture import model_lines, refused_shapes
from popgeo.capture.free_slots import FreeSlots
from popgeo.capture.interrupts import raise_held
from popgeo.capture.known_layouts import run_on_stand_ins
from popgeo.capture.op_graph import BlockMark, Op, OpGraph, append_parts
from popgeo.capture.page import Page, UnknownValue
from popgeo.capture.refused_shapes import Problem
from popgeo.capture.schemas import (
    IN_MEMORY,
    VIEWS_IN_PLACE,
    chooses_results,
    is_composite,
    makes_tensors,
    named_arguments,
    only_raises,
    target,
    written_by,
)
from popgeo.replaced import replaced

# The place of the weight among the arguments of a norm.
_WEIGHT_OF_NORM = {
    "aten::native_batch_norm": 1, "aten::_native_batch_norm_legit": 1, "aten::native_layer_norm": 2,
    "aten::native_group_norm": 1,
}  # fmt: skip
# Kernels whose results have the type of the first operand, also if the stand-ins of mixed operands have another one.
_TYPE_OF_FIRST = ("aten::huber_loss", "aten::soft_margin_loss", "aten::normal")


class Recorder(TorchDispatchMode):
    """A mode that records each operation below autograd, so that forward, backward and updates have one form.

    It works on fake tensors, which have a shape and no data, and on real ones.

    Args:
        stop: Code of the function that calls the model; its callers are not lines of the model.
        on_problem: Called with each dependence on data. Default: raise an error.
        phase: Phase of the first operations. Default: `forward`.
        keeps_state: Refuse changes of tensors that are not inputs, because a step would lose them. Default: True.
        instead: Called in place of an operation with a result that depends on data. Default: run the operation.

    Attributes:
        page: The recorded graph so far.
        slots: Follows the rows that masks chose.
        on_result: Called after each operation with the operation, its arguments and its result.
        on_operation: Called after each recorded operation.
    """

    def __init__(
        self,
        stop: CodeType,
        on_problem: Callable[[Problem], None] = refused_shapes.refuse,
        phase: str = "forward",
        keeps_state: bool = True,
        instead: Callable[..., Any] = lambda func, args, kwargs: func(*args, **kwargs),
    ) -> None:
        super().__init__()
        self.on_result: Callable[..., None] = lambda *of_an_operation: None
        self._instead = instead
        self.phase, self._keeps_state = phase, keeps_state
        self.slots = FreeSlots()
        self.modules = [""]
        self.marked: list[Tensor] = []
        self.on_operation: Callable[[], object] = lambda: None
        self.files: set[str] = set()
        self._stop, self._on_problem = stop, on_problem
        self.page = Page()
        self._forward_of: dict[int, dict[str, Any]] = {}
        self.block: BlockMark | None = None
        self.block_numbers = itertools.count()  # the names of blocks without a name
        self._paused = self._in_body = False
        self.refusal: BaseException | None = None
        self.view_storages: set[int] = set()
        """Storages of inputs that are views with an offset or strides in the caller's memory."""

    @contextlib.contextmanager
    def separate_graph(self) -> Iterator[None]:
        """Record the block in a separate graph, such as the body of a loop, then continue with the previous graph.

        Outside tensors that the block uses are constants of that graph.
        """
        with replaced(self, "page", Page()), replaced(self, "_in_body", True):
            yield

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Record nothing while the block runs."""
        return replaced(self, "_paused", True)

    def add(self, target: str, args: tuple[Any, ...], results: Sequence[Tensor], bodies: tuple[OpGraph, ...]) -> None:
        """Record an operation with bodies, which torch does not know."""
        recorded = self.page.with_refs(args)
        outputs = tuple(self.page.new_value(tensor, producer=len(self.page.ops)) for tensor in results)
        self._append(target, recorded, outputs, bodies=bodies)

    def line(self) -> str:
        """Return the line of the model that runs now, as `file:line in function: code`."""
        return model_lines.describe(model_lines.model_frame(self._stop))

    @contextlib.contextmanager
    def follow_modules(self, module: nn.Module) -> Iterator[None]:
        """Keep the names of the running submodules in `modules` while the block runs."""
        with contextlib.ExitStack() as hooks:
            for name, submodule in module.named_modules():
                if isinstance(submodule, torch.jit.ScriptModule):
                    continue  # it takes no hooks, so its operations belong to its parent

                def enter(module: nn.Module, args: Any, name: str = name) -> None:
                    self.modules.append(name)

                def leave(module: nn.Module, args: Any, result: Any) -> None:
                    self.modules.pop()

                hooks.enter_context(submodule.register_forward_pre_hook(enter))
                hooks.enter_context(submodule.register_forward_hook(leave, always_call=True))
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # autograd asks for it at every gradient
            return args[0].device
        try:
            raise_held()
        except BaseException as error:  # TorchScript would change its class
            self.refusal = error
            raise
        keywords = dict(kwargs or {})
        if self._paused:
            return func(*args, **keywords)
        func = IN_MEMORY.get(func, func)
        if is_composite(func):  # torch decomposes these itself, except for tensors made in inference mode
            with self:
                return func.decompose(*args, **keywords)
        if refused_shapes.is_dynamic(func, args, keywords):
            result = self._known(func, args, keywords)
        elif not makes_tensors(func) and not any(isinstance(arg, fake_tensor.FakeTensor) for arg in args):
            # The result is a number of an outside tensor; a fake tensor has no numbers.
            with fake_tensor.unset_fake_temporarily():
                result = func(*args, **keywords)
        else:
            viewed = args[0] if func.is_view and args and args[0].layout is torch.strided else None
            memory = 0 if viewed is None else viewed.untyped_storage().nbytes()
            if func is torch.ops.aten.as_strided.default and args[0].untyped_storage()._cdata in self.view_storages:
                raise ValueError(
                    f"{self.line()}: as_strided counts from the memory of an argument that is itself a view, and a "
                    "compiled step has arguments in memory of its own. Index the tensor, or pass x.clone()."
                )
            result = self._stand_in(func, args, keywords)
            if viewed is not None and viewed.untyped_storage().nbytes() > memory:  # stand-ins allow this
                raise ValueError(
                    f"{self.line()}: {func._schema.name} makes a view that ends beyond the {memory:,} bytes of its "
                    "tensor. Eager mode refuses it, too. Make it end within the tensor."
                )
            self.on_result(func, args, keywords, result)
        if makes_tensors(func) or only_raises(func):
            self._write_down(func, args, keywords, result)
        return result

    def _known(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation that depends on data, if the data are known; report a problem otherwise."""
        try:
            return self.page.compute(func, args, kwargs)
        except UnknownValue:
            self.problem_here(func._schema.name.removeprefix("aten::"))()
            return self._instead(func, args, kwargs)

    def _stand_in(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result on stand-ins; if they refuse the operands, compute a stand-in with the kernel."""
        try:
            if func is torch.ops.aten.select.int and len(args) == 3:
                range(args[0].shape[args[1]])[args[2]]  # stand-ins of torch 2.10 take any index
            result = run_on_stand_ins(func, args, kwargs)
            weight = _WEIGHT_OF_NORM.get(func._schema.name)
            if weight is not None and args[weight] is not None:
                # The kernels keep the statistics in the weight's type, unlike the stand-ins.
                result = result[0], *(one.to(args[weight].dtype) for one in result[1:])
            if func._schema.name == "aten::_scaled_dot_product_flash_attention_for_cpu":
                # Before torch 2.13 the stand-in of the sums is float32, also where the kernel's are float64.
                result = result[0], result[1].to(torch.promote_types(args[0].dtype, torch.float32))
            if chooses_results(func):  # the kernels leave out the others
                wanted = named_arguments(func, args, kwargs).output_mask
                result = tuple(one if needed else None for one, needed in zip(result, wanted, strict=True))
            if func._schema.name in _TYPE_OF_FIRST and isinstance(args[0], Tensor):
                result = result.to(args[0].dtype)
            if func._schema.name == "aten::addr":  # its kernel counts the type of a number as that of a matrix
                result = result.to(torch.promote_types(args[0].dtype, result.dtype))
            return self.slots.follow(func, args, kwargs, result)
        # Torch's table lacks these operations.
        except (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException):
            return self._known(func, args, kwargs)
        except (RuntimeError, IndexError, ZeroDivisionError) as error:  # the mean of no rows divides by zero
            if type(error) not in (RuntimeError, IndexError, ZeroDivisionError):
                raise
            try:
                return self.page.compute(func, args, kwargs, makes_up=True)
            except (RuntimeError, IndexError) as refused:
                if type(refused) not in (RuntimeError, IndexError):
                    raise
                raise type(refused)(f"{refused}, in {self.line()}") from None

    def _write_down(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        page, name, changed = self.page, target(func), written_by(func, args, kwargs)
        recorded_args = page.with_refs(args)
        recorded_kwargs = {key: page.with_refs(arg) for key, arg in kwargs.items()}
        writes = tuple(map(page.number, changed))
        if name in VIEWS_IN_PLACE:  # from here on the tensor is a view of its old value
            name, writes = VIEWS_IN_PLACE[name], ()
            page.forget(result)
        self._refuse_other_layouts(func, changed)
        if self._keeps_state:
            self._refuse_writes_to_constants(func, writes)
        if func is torch.ops.aten.detach.default and page.is_constant(args[0]):  # detached from its stand-in
            page.share_memory(result, args[0])
        results = result if isinstance(result, tuple | list) else () if result is None else (result,)
        known: list[Tensor] = []
        if not (func.is_view or changed):
            append_parts(Tensor, (*args, *kwargs.values()), known)
        new = [None if any(one is other for other in known) else one for one in results]
        if results and not any(one is not None for one in new):
            return  # it returns its operands
        made: Any = new[0] if len(new) == 1 else None
        if (viewed := _seen_through(made, known)) is not None:  # a view, even if its schema does not say so
            name, layout = _view_of(viewed, made)
            recorded_args, recorded_kwargs = (page.with_refs(viewed), *layout), {}
        outputs = tuple(page.output(tensor) if isinstance(tensor, Tensor) else None for tensor in new)
        self._append(name, recorded_args, outputs, kwargs=recorded_kwargs, writes=writes)
        if name == "popgeo.identity_loss.default" and not self._in_body:
            self.marked.append(result)

    def _append(self, target: str, args: tuple[Any, ...], outputs: tuple[int | None, ...], **other: Any) -> None:
        """Add an operation with its place in the model to the page."""
        self.page.ops.append(Op(target=target, args=args, outputs=outputs, phase=self.phase, **self._place(), **other))
        self.on_operation()

    def _place(self) -> dict[str, Any]:
        """Return submodule, line and block of an operation; in the backward pass, of its forward operation."""
        if self.phase == "backward":
            node = torch._C._current_autograd_node()
            return {} if node is None else self._forward_of.get(node._sequence_nr(), {})
        self.files |= model_lines.files(self._stop)
        place = {"module": self.modules[-1], "source": self.line(), "block": self.block}
        # Autograd numbers its node just before it runs the operation; without a node the number stays the same.
        self._forward_of.setdefault(torch.autograd._get_sequence_nr() - 1, place)  # type: ignore[attr-defined]
        return place

    def problem_here(self, name: str) -> Callable[[], None]:
        """Return a function that reports an operation on the running line as dependent on data."""
        source = self.line()
        remedy = refused_shapes.remedy(name, refused_shapes.callers(sys._getframe(2)), source)
        problem = Problem(name, source, self.modules[-1], remedy)

        def report() -> None:
            try:
                self._on_problem(problem)
            except Exception as error:
                self.refusal = error
                raise

        return report

    def _refuse_other_layouts(self, func: Any, changed: Sequence[Tensor]) -> None:
        """Refuse a tensor that got another shape or memory: its number would name another value."""
        for tensor in changed:
            if func._schema.name == "aten::set_" or self.page.has_other_shape(tensor):
                raise ValueError(
                    f"{self.line()}: {func._schema.name} gives a tensor another shape or other memory in place, as "
                    "functions with out= may. Make a new tensor instead: leave out= out, and copy_() the result."
                )

    def _refuse_writes_to_constants(self, func: Any, writes: Sequence[int]) -> None:
        if writes and self.page.storages(writes) & self.page.storages(self.page.constants):
            advice = "parameter, buffer nor result. Make it a buffer with register_buffer, so that its state is kept."
            if self._in_body:
                advice = "input of the loop or branch nor made in it. Pass it as an input, and use the result."
            raise ValueError(f"{self.line()}: {func._schema.name} changes a tensor that is neither {advice}")


def _seen_through(result: Any, given: Iterable[Tensor]) -> Tensor | None:
    """Return the operand that shares its memory with a result, or None."""
    if not isinstance(result, Tensor) or result.layout is not torch.strided:
        return None
    memory, same_type = result.untyped_storage()._cdata, (one for one in given if one.dtype is result.dtype)
    dense = (one for one in same_type if one.layout is torch.strided)
    return next((one for one in dense if one.untyped_storage()._cdata == memory), None)


def _view_of(viewed: Tensor, made: Tensor) -> tuple[str, tuple[Any, ...]]:
    """Return the operation that makes a view of a tensor, and its other arguments."""
    is_plain = made.is_contiguous() and viewed.is_contiguous() and made.numel() == viewed.numel()
    if is_plain and made.storage_offset() == viewed.storage_offset():
        return "aten.view.default", (list(made.shape),)
    return "aten.as_strided.default", (list(made.shape), list(made.stride()), made.storage_offset())


def active_recorder() -> Recorder | None:
    """Return the active recorder; None outside of a capture."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, Recorder)), None)


def active_slots() -> FreeSlots:
    """Return the free slots of the active recorder; outside of a capture, there are none."""
    recorder = active_recorder()
    return FreeSlots() if recorder is None else recorder.slots
