"""Small programs of attention, convolutions, pools, losses, norms and collectives, in their variants."""

import torch
from torch import nn

from popgeo import ops
from tests.support.cost_programs import Program, numbers, places


def layers() -> dict[str, Program]:
    """Return programs of attention, convolutions, pools, losses, norms and collectives, forward and backward."""
    aten, half = torch.ops.aten, torch.float16
    functional, attention = nn.functional, nn.functional.scaled_dot_product_attention
    heads, long, mask = numbers(2, 3, 40, 8), numbers(1, 1, 3000, 64), numbers(40, 24)
    keys, pictures, kernel = numbers(2, 3, 24, 8), numbers(2, 6, 18, 17), numbers(4, 6, 3, 2)
    x, y, picked = numbers(37, 13), numbers(37, 13), places(37)
    row, halves, one = numbers(13), numbers(37, 64, dtype=half), numbers()
    shape = ([2, 2], [1, 0], [1, 1], False, [0, 0], 1)
    return {
        "attention masked": (lambda q, k, m: attention(q, k, k, attn_mask=m), (heads, keys, mask)),
        "attention of a long head": (attention, (long, long, long)),
        "attention dropped": (lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.1), (heads,)),
        "convolution in steps": (lambda x, w: functional.conv2d(x, w, stride=2), (pictures, kernel)),
        "convolution of a sequence": (functional.conv1d, (numbers(3, 4, 50), numbers(6, 4, 3), numbers(6))),
        "convolution transposed": (
            lambda x, w: functional.conv_transpose2d(x, w, stride=(2, 3)), (numbers(2, 4, 8, 7), kernel)
        ),
        "convolution in groups": (lambda x, w: functional.conv2d(x, w, groups=2), (pictures, numbers(4, 3, 3, 3))),
        "gradient of a convolution's input": (
            lambda g, x, w: aten.convolution_backward(g, x, w, None, *shape, [True, False, False])[0],
            (numbers(2, 4, 9, 8), pictures, kernel),
        ),
        "gradient of a convolution's weight": (
            lambda g, x, w: aten.convolution_backward(g, x, w, None, *shape, [False, True, False])[1],
            (numbers(2, 4, 9, 8), pictures, kernel),
        ),
        "pools": (lambda x: (functional.max_pool2d(x, 3, 2), functional.avg_pool2d(x, (2, 3))), (pictures,)),
        "adaptive pools": (
            lambda x: (functional.adaptive_avg_pool2d(x, 5), functional.adaptive_max_pool2d(x, (3, 1))), (pictures,)
        ),
        "pictures enlarged": (
            lambda x: (functional.interpolate(x, scale_factor=2), functional.interpolate(x, (40, 30), mode="bilinear")),
            (pictures,),
        ),
        "sequences enlarged": (lambda x: functional.interpolate(x, scale_factor=3), (numbers(3, 4, 50),)),
        "losses by element": (
            lambda x, y: (
                functional.l1_loss(x, y), functional.smooth_l1_loss(x, y), functional.kl_div(x, y, reduction="sum"),
                functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
            ),
            (x, y),
        ),
        "gradients of losses": (
            lambda g, x, y: (
                aten.smooth_l1_loss_backward(g, x, y, 1, 1.0), aten.huber_loss_backward(g, x, y, 1, 1.0),
                aten.binary_cross_entropy_backward(g, x, y),
            ),
            (one, x, y),
        ),
        "class of pictures": (functional.nll_loss, (numbers(4, 5, 6, 7), places(4, 6, 7))),
        "layer norm with weight": (lambda x, w: functional.layer_norm(x, (13,), w), (x, row)),
        "layer norm with weight and bias": (lambda x, w: functional.layer_norm(x, (13,), w, w), (x, row)),
        "layer norm half": (lambda x: functional.layer_norm(x, (64,)), (halves,)),
        "groups normalized with weight": (lambda x, w: functional.group_norm(x, 3, w, w), (pictures, numbers(6))),
        "gradient of groups normalized": (
            lambda x, m, w: aten.native_group_norm_backward(x, x, m, m, w, 2, 6, 306, 3, [True, True, True]),
            (pictures, numbers(2, 3), numbers(6)),
        ),
        "softmax of columns": (lambda x: (x.softmax(0), x.log_softmax(0)), (x,)),
        "one shard of four": (lambda x: ops.all_reduce(x, 4, stride=2), (numbers(1, 3000),)),
        "gathered far apart": (lambda x: ops.all_gather(x, 0, 8, stride=16), (numbers(1, 3000),)),
        "rarer activations": (
            lambda x, w: (
                functional.prelu(x, w), functional.hardswish(x), functional.hardsigmoid(x), functional.softshrink(x),
                functional.mish(x), functional.logsigmoid(x), functional.glu(x[:, :12]),
            ),
            (x, row),
        ),
        "numbers compared": (lambda x, y: (x.isnan() | (x > y)).logical_not() & x.isfinite(), (x, y)),
        "random numbers": (lambda x: (torch.randn_like(x), torch.bernoulli(x)), (x,)),
        "integers": (lambda i: (i // 3, i % 3, i * i, i.clamp(0, 5), -i), (picked,)),
        "types changed": (lambda x, i: (x.half().float(), i.float(), x.long()), (x, picked)),
        "moved": (
            lambda x: (x.repeat(2, 3), x.roll(1, 0), x.tril(), functional.pad(x, (1, 2)), x.t().contiguous()), (x,)
        ),
        "parts of tensors": (
            lambda x: (aten.slice_backward(x, [90, 13], 0, 3, 40, 1), x.select_scatter(x[0], 0, 2), x.diag_embed()),
            (x,),
        ),
        "made of nothing": (lambda x: (torch.arange(5000), torch.full((300,), 2.0), x.new_ones(7)), (x,)),
        "means and extremes": (
            lambda x: (x.std(), torch.var_mean(x, 0), x.argmax(1), x.amin(0), x.any(1), x.prod(0), x.aminmax()), (x,)
        ),
        "running extremes": (lambda x: (x.cummax(1), x.cumprod(0), x.logcumsumexp(0)), (x,)),
    }  # fmt: skip
