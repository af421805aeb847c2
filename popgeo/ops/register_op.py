"""How an op becomes known to torch: one schema, one kernel, one shape rule, one derivative."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from popgeo.ops.eager import is_eager, is_transformed_by_func, refuse_forward_mode

_Functions = tuple[type[torch.autograd.Function] | None, type[torch.autograd.Function] | None]
LIBRARY = torch.library.Library("popgeo", "DEF")


class RegisteredOp:
    """An op that torch knows as `popgeo::<name>`, called by the shortest way that the situation allows.

    Capture, compile and export go through torch's dispatcher. Plain eager code does not: without gradients it calls the
    kernel, which saves 15 microseconds; with them a bare autograd function, which saves 100. So does `torch.func`,
    which knows no derivative of the dispatcher's.
    """

    def __init__(self, name: str, kernel: Callable[..., Any], functions: _Functions = (None, None)) -> None:
        self.packet, self.kernel = getattr(torch.ops.popgeo, name), kernel
        self.function, self.transformed = functions

    def __call__(self, *arguments: Any) -> Any:
        if not is_eager(arguments):
            if self.transformed is not None and is_transformed_by_func():
                return self.transformed.apply(*arguments)
            return self.packet(*arguments)
        if self.function is not None and torch.is_grad_enabled():
            for argument in arguments:
                if isinstance(argument, Tensor) and argument.requires_grad:
                    return self.function.apply(*arguments)
        return self.kernel(*arguments)


def register(
    schema: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> RegisteredOp:
    """Registers `popgeo::<schema>` so that capture, compile and export see it as one op.

    The low-level interface is used because `torch.library.custom_op` costs three times as much per call. Every op that
    a `backward` calls has a `backward` of its own: without it torch differentiates twice and returns wrong numbers.

    Args:
        schema: Name and arguments in torch's schema language, such as `gather(Tensor x, Tensor index) -> Tensor`.
        kernel: Computes the result on real tensors.
        fake: Returns empty tensors of the result's shapes; no shape may depend on data.
        setup_context: Saves what `backward` needs; by default all inputs. `setup_context(ctx, inputs, output)`
        backward: Gradients of all inputs from the gradients of the outputs. `backward(ctx, *grads)`
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, refusing_none(name, kernel), device)
    torch.library.register_fake(f"popgeo::{name}", fake, lib=LIBRARY)
    if backward is None:
        return RegisteredOp(name, kernel)
    setup_context = setup_context or _save_inputs
    torch.library.register_autograd(f"popgeo::{name}", backward, setup_context=setup_context, lib=LIBRARY)
    return RegisteredOp(name, kernel, _autograd_functions(name, kernel, setup_context, backward))


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps all inputs: tensors, and None in the place of one, as `ctx.saved_tensors`, the others as `ctx.numbers`."""
    ctx.save_for_backward(*(one for one in inputs if one is None or isinstance(one, Tensor)))
    ctx.numbers = [one for one in inputs if one is not None and not isinstance(one, Tensor)]


def refusing_none(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an operation for torch's dispatcher, which lets None pass for a tensor that is required.

    Raises:
        ValueError: when it is called with None for a tensor.
    """
    asked = [
        (at, one.name)
        for at, one in enumerate(getattr(torch.ops.popgeo, name).default._schema.arguments)
        if isinstance(one.type, torch.TensorType)
    ]

    def checked(*arguments: Any) -> Any:
        for at, argument in asked:
            if arguments[at] is None:
                raise ValueError(f"popgeo::{name} was called with {argument}=None; pass a tensor.")
        return kernel(*arguments)

    return checked


def _autograd_functions(
    name: str, kernel: Callable[..., Any], setup_context: Callable[..., None], backward: Callable[..., Any]
) -> _Functions:
    """Return the function for plain eager code, and the slower one that `torch.func` can transform."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = kernel(*inputs)
        setup_context(ctx, inputs, output)
        return output

    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        rows = [
            transformed.apply(  # type: ignore[attr-defined]  # a class made by name
                *(one if at is None else one.select(at, i) for one, at in zip(inputs, in_dims, strict=True))
            )
            for i in range(info.batch_size)
        ]
        if isinstance(rows[0], Tensor):
            return torch.stack(rows), 0
        return tuple(map(torch.stack, zip(*rows, strict=True))), (0,) * len(rows[0])

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(f"popgeo_{name}", (torch.autograd.Function,), methods)
    # Not the kernel itself, of which torch.func would pass the defaults on by name.
    methods |= {"forward": staticmethod(lambda *inputs: kernel(*inputs)), "setup_context": staticmethod(setup_context)}
    methods |= {"jvp": staticmethod(refuse_forward_mode), "vmap": staticmethod(vmap)}
    transformed = type(f"popgeo_{name}_transformed", (torch.autograd.Function,), methods)
    return function, transformed
