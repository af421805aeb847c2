"""Lowers operations that are several for the machine: SchNet's convolution, forward and backward."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.elementwise import of_two
from popgeo.ipu.tiles.lower.gather import gather_rows
from popgeo.ipu.tiles.lower.scatter import scatter_rows


def lower_cfconv(scope: Scope, op: Op) -> None:
    """Lower popgeo.cfconv(x, w, src, dst, num_nodes): out[dst] += x[src] * w."""
    x, w, src, dst = (scope.region(arg.value) for arg in op.args[:4])
    scatter_rows(scope, scope.region(op.outputs[0]), dst, gather_rows(scope, x, src), factor=w)


def lower_cfconv_backward(scope: Scope, op: Op) -> None:
    """Lower popgeo.cfconv_backward(grad, x, w, src, dst) -> (grad_x, grad_w)."""
    grad, x, w, src, dst = (scope.region(arg.value) for arg in op.args[:5])
    arrived = gather_rows(scope, grad, dst)
    if op.outputs[1] is not None:
        out, sent = scope.region(op.outputs[1]), gather_rows(scope, x, src)
        of_two(scope, "multiply", "aten.mul.Tensor", out, sent, arrived)
    if op.outputs[0] is not None:
        scatter_rows(scope, scope.region(op.outputs[0]), src, arrived, factor=w)
