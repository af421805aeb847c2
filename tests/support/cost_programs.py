"""Small programs of tables, products and elementwise operations, in shapes that fill the machine and others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from popgeo import ops
from popgeo.capture.control_flow import cond, for_loop

Program = tuple[Callable[..., Any], tuple[Tensor, ...]]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def places(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def programs() -> dict[str, Program]:
    """Return the programs by name, some in shapes that fill the machine, in uneven shapes and in small shapes."""
    aten, half = torch.ops.aten, torch.float16
    wide, uneven, small = numbers(4096, 100), numbers(999, 37), numbers(7, 3)
    found: dict[str, Program] = {}
    for name, value in {
        "wide": wide,
        "uneven": uneven,
        "one": numbers(1, 1),
        "half": numbers(999, 37, dtype=half),
        "integers": numbers(999, 37, dtype=torch.int32),
    }.items():
        found |= {f"{kind} {name}": (function, (value,)) for kind, function in _ON_ONE.items()}
        if value.dtype.is_floating_point:
            found |= {f"{kind} {name}": (function, (value,)) for kind, function in _ON_FLOATS.items()}
    index = places(16128)
    for name, table, lookups in (
        ("wide", numbers(576, 100), index),
        ("long", numbers(20000, 16), index),
        ("narrow", numbers(5, 1), places(33)),
        ("few", numbers(4096, 128), places(16)),
        ("one", numbers(1, 1), places(1)),
        ("half", numbers(577, 99, dtype=half), index),
    ):
        found[f"gather {name}"] = (lambda x, i: ops.gather(x, i), (table, lookups))
        rows = numbers(len(lookups), table.shape[1], dtype=table.dtype)
        found[f"scatter {name}"] = (lambda x, r, i: x.index_add(0, i, r), (table, rows, lookups))
        found[f"sum rows {name}"] = (_scatter_into(len(table), "sum"), (rows, lookups))
    edges, nodes = numbers(4096, 64), numbers(300, 64)
    to = places(4096)
    found |= {
        "product of rows": (_scatter_into(300, "mul"), (edges, to)),
        "largest rows": (_scatter_into(300, "max"), (edges, to)),
        "sums of columns": (lambda x, i: x.scatter_add(1, i, x), (nodes, places(300, 64))),
        "means by index": (
            lambda x, i: x.new_zeros(300, 64).scatter_reduce(0, i[:, None].expand(-1, 64), x, "mean"), (edges, to)
        ),
        "products by index": (lambda x, r, i: x.index_reduce(0, i, r, "prod"), (nodes, edges, to)),
        "rows copied": (lambda x, r, i: x.index_copy(0, i, r), (nodes, edges, to)),
        "rows put": (lambda x, r, i: x.index_put((i,), r), (nodes, edges, to)),
        "rows put and added": (lambda x, r, i: x.index_put((i,), r, accumulate=True), (nodes, edges, to)),
        "entries looked up": (lambda x, i, j: x[i, j], (nodes, to, to)),
        "embedding": (lambda x, i: nn.functional.embedding(i, x), (nodes, to)),
        "embedding backward": (lambda g, i: aten.embedding_dense_backward(g, i, 300, -1, False), (edges, to)),
        "columns selected": (lambda x, i: x.index_select(1, i), (nodes, places(70))),
        "convolution": (lambda x, w, i, j: ops.cfconv(x, w, i, j, 300), (nodes, edges, to, to)),
        "convolution backward": (_convolution_backward, (nodes, nodes, edges, to, to)),
        "nll": (nn.functional.nll_loss, (uneven, places(999))),
        "nll backward": (lambda g, x, t, w: aten.nll_loss_backward(g, x, t, None, 1, -100, w),
                         (numbers(), uneven, places(999), numbers())),
    }  # fmt: skip
    for rows, contraction, columns in (
        (16128, 100, 100),
        (2048, 2048, 64),
        (7, 5, 3),
        (1, 1, 1),
        (1000, 33, 17),
        (4, 9000, 30),
    ):
        for kind in (torch.float32, half):
            pair = (numbers(rows, contraction, dtype=kind), numbers(contraction, columns, dtype=kind))
            found[f"product {rows} x {contraction} x {columns} {kind}"] = (torch.mm, pair)
    found |= {
        "product in turns": (torch.mm, (numbers(8192, 8192), numbers(8192, 2048))),
        "linear": (nn.functional.linear, (uneven, numbers(20, 37), numbers(20))),
        "product with sum": (torch.addmm, (numbers(20), uneven, numbers(37, 20))),
        "products": (torch.bmm, (numbers(12, 50, 20), numbers(12, 20, 30))),
        "many products": (torch.bmm, (numbers(3000, 5, 4), numbers(3000, 4, 6))),
        "matrix by vector": (torch.mv, (uneven, numbers(37))),
        "distances": (torch.cdist, (numbers(300, 3), numbers(200, 3))),
        "long distances": (torch.cdist, (numbers(300, 256), numbers(200, 256))),
        "distances backward": (lambda g, x, y, d: aten._cdist_backward(g, x, y, 2.0, d),
                               (numbers(300, 200), numbers(300, 3), numbers(200, 3), numbers(300, 200))),
        "running sums": (lambda x: x.cumsum(0), (numbers(5000),)),
        "best of rows": (lambda x: x.topk(5, dim=1).values, (numbers(40, 1000),)),
        "best of short rows": (lambda x: x.topk(3, dim=1).values, (numbers(4000, 9),)),
        "sorted": (lambda x: x.sort(dim=0).values, (numbers(300, 40),)),
        "third smallest": (lambda x: x.kthvalue(3, 0).values, (numbers(300, 40),)),
        "adam": (_adam, (numbers(3000), numbers(3000), numbers(3000), numbers(3000), numbers())),
        "best of a vector": (lambda x: x.topk(5).values, (numbers(1000),)),
        "sorted rows": (lambda x: (x.sort().values, x.argsort(descending=True)), (numbers(40, 9),)),
        "third smallest of rows": (lambda x: x.kthvalue(3).values, (numbers(40, 9),)),
        "softmax of a vector": (lambda x: (x.softmax(0), x.mean(0)), (numbers(500),)),
        "remainders": (lambda x: x % x[0], (uneven,)),
        "product of a number": (torch.dot, (numbers(300), numbers(300))),
        "matrix by vector with sum": (torch.addmv, (numbers(999), uneven, numbers(37))),
        "images normalized": (
            lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False), (numbers(5, 7, 9),)
        ),
        "layer norm backward": (_layer_norm_backward, (uneven, numbers(999, 1), numbers(37))),
        "batch norm backward": (_batch_norm_backward, (uneven, numbers(37))),
        "attention": (_attention, (numbers(2, 4, 300, 64),)),
        "attention half": (_attention, (numbers(2, 4, 300, 64, dtype=half),)),
        "attention in turns": (_attention, (numbers(2, 16, 4096, 64, dtype=half),)),
        "pictures": (_pictures, (numbers(8, 3, 64, 64), numbers(32, 3, 7, 7), numbers(32))),
        "pictures half": (_pictures, tuple(numbers(*s, dtype=half) for s in ((4, 32, 14, 14), (48, 32, 3, 3), (48,)))),
        "channels apart": (lambda x, w: nn.functional.conv2d(x, w, groups=32), (
            numbers(4, 32, 14, 14), numbers(32, 1, 3, 3))),
        "groups normalized": (lambda x: nn.functional.group_norm(x, 4), (numbers(4, 32, 14, 14),)),
        "loop": (lambda x, w: for_loop(5, lambda y: [(y @ w).relu() + x], [x]), (uneven, numbers(37, 37))),
        "branches": (lambda x: cond(x.sum() > 0, lambda y: [y.exp() @ y.T], [x], lambda y: [y @ y.T], [x]), (uneven,)),
        "no elements": (
            lambda x: (x.exp().sum(), x.sum(0), x @ x.T, x.softmax(1), torch.cat([x, x])), (numbers(0, 8),)
        ),
        "shards": (_tell_each_other, (numbers(4, 30, 16), numbers(4, 4, 9))),
        "no rows": (lambda x, i: (ops.gather(x, i), ops.scatter(x[:0], i, dim=0, dim_size=7)), (small, places(0))),
    }  # fmt: skip
    return found


_ON_ONE: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: (x + x) * 3 + x[0] + x[:, :1],
    "largest": lambda x: torch.maximum(x, x).clamp(0, 1),
    "choices": lambda x: torch.where(x > 0, x, -x).float(),
    "copies": lambda x: torch.cat([x, x]).flip(0),
    "filled": lambda x: torch.zeros_like(x),
    "sums": lambda x: (x.sum(), x.sum(0), x.sum(1)),
}
_ON_FLOATS: dict[str, Callable[..., Any]] = {
    "functions": lambda x: x.exp().log1p().sqrt().rsqrt().reciprocal().erf().cos().tanh() / x,
    "powers": lambda x: x.pow(2) + x.pow(3) + x.pow(1.7),
    "gelu": lambda x: torch.ops.aten.gelu_backward(nn.functional.gelu(x), x),
    "activations": lambda x: nn.functional.softplus(nn.functional.silu(nn.functional.elu(x))),
    "products summed": lambda x: torch.addcmul(x, x, x).lerp(x, 0.5).addcdiv(x, x),
    "random": lambda x: nn.functional.dropout(x, 0.5, training=True),
    "reductions": lambda x: (x.mean(1), x.norm(), x.logsumexp(0), x.var(1), x.amax(0)),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(0)),
    "softmax backward": lambda x: (
        torch.ops.aten._softmax_backward_data(x, x, 1, x.dtype),
        torch.ops.aten._log_softmax_backward_data(x, x, 1, x.dtype),
    ),
    "norms": lambda x: (
        nn.functional.layer_norm(x, x.shape[1:]),
        torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
    ),
    "losses": lambda x: (
        nn.functional.mse_loss(x, x + 1),
        nn.functional.huber_loss(x, x + 1, reduction="none"),
        nn.functional.binary_cross_entropy_with_logits(x, x),
        torch.ops.aten.mse_loss_backward(x, x, x, 0),
    ),
    "unknown": torch.special.bessel_j0,
}  # fmt: skip


def _tell_each_other(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Run all collectives: on four shards of one machine, then on one of four shards of four machines."""
    one = x[:1]
    held = ops.all_reduce(x), ops.reduce_scatter(x, -1), ops.all_gather(x, -1), ops.all_to_all(y)
    alone = ops.all_reduce(one, 4), ops.reduce_scatter(one, -1, 4), ops.all_gather(one, -1, 4), ops.all_to_all(y[:1])
    return *held, *alone, ops.replicate(x[0], 4), ops.shard(x[0], 4, -1), ops.shard(x[0], 4, -1, num_local=1)


def _scatter_into(rows: int, reduce: str) -> Callable[..., Any]:
    return lambda x, i: ops.scatter(x, i, dim=0, dim_size=rows, reduce=reduce)


def _convolution_backward(g: Tensor, x: Tensor, w: Tensor, i: Tensor, j: Tensor) -> Any:
    return torch.ops.popgeo.cfconv_backward(g, x, w, i, j, None, None, None, None, 0)


def _attention(x: Tensor) -> Any:
    """Run causal attention and its gradients."""
    made, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.0, True)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(x, x, x, x, made, sums, 0.0, True)


def _pictures(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    """Run convolutions and pools, forward and backward."""
    aten = torch.ops.aten
    shape = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    made = aten.convolution(x, weight, bias, *shape)
    sizes = [len(bias)]
    largest, where = aten.max_pool2d_with_indices(made, [2, 2])
    return (
        aten.convolution_backward(made, x, weight, sizes, *shape, [True, True, True]),
        aten.max_pool2d_with_indices_backward(largest, made, [2, 2], [2, 2], [0, 0], [1, 1], False, where),
        aten.avg_pool2d_backward(nn.functional.avg_pool2d(made, 3, 1), made, [3, 3], [1, 1], [0, 0], False, True, None),
        nn.functional.interpolate(largest, scale_factor=2),
    )


def _branches(x: Tensor) -> Any:
    return cond(x.sum() > 0, lambda y: [y.exp() @ y.T], [x], lambda y: [y @ y.T], [x])


def _layer_norm_backward(x: Tensor, row: Tensor, weight: Tensor) -> Any:
    masks = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(x, x, [37], row, row, weight, weight, masks)


def _batch_norm_backward(x: Tensor, column: Tensor) -> Any:
    masks = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(
        x, x, column, column, column, column, column, True, 1e-5, masks
    )  # fmt: skip


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor) -> Tensor:
    torch.ops.aten._fused_adam_(
        [p], [g], [m], [v], [], [t], lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False,
        maximize=False,
    )  # fmt: skip
    return p
