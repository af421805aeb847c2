"""Registration of ops in torch, each with a schema, a kernel, a shape rule and a derivative."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.ops.eager import is_eager, is_transformed_by_func, refuse_forward_mode

_Functions = tuple[type[torch.autograd.Function] | None, type[torch.autograd.Function] | None]
LIBRARY = torch.library.Library("popgeo", "DEF")
_OTHER_LIBRARIES: list[torch.library.Library] = []  # torch removes the ops of a library that is not kept


class RegisteredOp:
    """A torch op, `popgeo::<name>`, with the fastest path for each call.

    Capture, compile and export go through torch's dispatcher. Plain eager code does not: without gradients it calls the
    kernel, which saves 15 microseconds; with gradients it calls a plain autograd function, which saves 100. Under
    `torch.func`, which cannot use the dispatcher's derivatives, a second autograd function is called.
    """

    def __init__(self, name: str, kernel: Callable[..., Any], functions: _Functions = (None, None)) -> None:
        self.packet, self.kernel = getattr(torch.ops.popgeo, name), kernel
        self.function, self.transformed = functions

    def __call__(self, *arguments: Any) -> Any:
        """Call the op."""
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
    """Register `popgeo::<schema>` so that capture, compile and export see it as one op.

    This uses torch's low-level interface, because `torch.library.custom_op` costs three times as much per call. Every
    op that a `backward` calls needs a `backward` too; without it torch would return wrong second derivatives.

    Args:
        schema: Name and arguments in torch's schema language, such as `gather(Tensor x, Tensor index) -> Tensor`.
        kernel: Function that computes the result on real tensors.
        fake: Function that returns empty tensors of the result's shapes; no shape may depend on data.
        setup_context: Function that saves tensors for `backward`: `setup_context(ctx, inputs, output)`. Default: save
            all inputs.
        backward: Function from the gradients of the outputs to those of all inputs: `backward(ctx, *grads)`. Default:
            the op has no derivative.
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


def register_for(namespace: str, operators: Mapping[str, Callable[..., Any]]) -> None:
    """Register ops of a package that is not installed, by schema; ops that exist stay.

    An op is torch code on any device, and has the derivatives of that code.
    """
    library = torch.library.Library(namespace, "FRAGMENT")
    _OTHER_LIBRARIES.append(library)
    for schema, function in operators.items():
        name = schema.partition("(")[0]
        if not hasattr(getattr(torch.ops, namespace), name):
            library.define(schema)
            library.impl(name, function, "CompositeImplicitAutograd")


def with_arguments_of(package: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without the argument `plan`, as a function of another package that TorchScript can call.

    TorchScript cannot compile popgeo's functions. It calls them as `torch.ops.PACKAGE.NAME`, which it also saves.
    """
    signature = inspect.signature(function)
    own = [argument for argument in signature.parameters.values() if argument.name != "plan"]
    given = function
    if len(own) < len(signature.parameters):

        @functools.wraps(function)
        def given(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        given.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        given.__module__ = package
        del given.__wrapped__  # type: ignore[attr-defined]  # TorchScript would read its arguments
    name = function.__name__
    register_for(package, {torch.library.infer_schema(given, mutates_args=(), op_name=name): function})
    torch.jit._builtins._register_builtin(given, f"{package}::{name}")
    return given


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save all inputs: tensors and None in `ctx.saved_tensors`, and other values in `ctx.numbers`."""
    ctx.save_for_backward(*(one for one in inputs if one is None or isinstance(one, Tensor)))
    ctx.numbers = [one for one in inputs if one is not None and not isinstance(one, Tensor)]


def refusing_none(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a kernel so that it rejects None for required tensors, which torch's dispatcher accepts.

    Raises:
        ValueError: in a call, None was passed for a tensor.
    """
    required = [
        (at, one.name)
        for at, one in enumerate(getattr(torch.ops.popgeo, name).default._schema.arguments)
        if isinstance(one.type, torch.TensorType)
    ]

    def checked(*arguments: Any) -> Any:
        for at, argument in required:
            if arguments[at] is None:
                raise ValueError(f"popgeo::{name} was called with {argument}=None; pass a tensor.")
        return kernel(*arguments)

    return checked


def _autograd_functions(
    name: str, kernel: Callable[..., Any], setup_context: Callable[..., None], backward: Callable[..., Any]
) -> _Functions:
    """Return the autograd function for plain eager code, and a slower function that `torch.func` can transform."""

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
    # A lambda, because torch.func would read the kernel's signature and pass its defaults by name.
    methods |= {"forward": staticmethod(lambda *inputs: kernel(*inputs)), "setup_context": staticmethod(setup_context)}
    methods |= {"jvp": staticmethod(refuse_forward_mode), "vmap": staticmethod(vmap)}
    transformed = type(f"popgeo_{name}_transformed", (torch.autograd.Function,), methods)
    return function, transformed
