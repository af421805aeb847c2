"""torch's own checks of the registered ops, and each way in which torch captures or transforms a program."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from popgeo import ops
from popgeo.ops import EdgePlan, ScatterPlan, cfconv, gather, scatter
from popgeo.ops.eager import is_direct, is_eager
from popgeo.ops.register_op import RegisteredOp

NUM_NODES, NUM_EDGES, CHANNELS = 5, 12, 4


@pytest.fixture
def batch(generator):
    edge_index = torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator)
    x, w = torch.randn(NUM_NODES, CHANNELS, generator=generator), torch.randn(NUM_EDGES, CHANNELS, generator=generator)
    return x, w, edge_index


def message_passing(x, w, edge_index):
    """Pass messages with one plan of both ends, as a model does."""
    plan = EdgePlan.from_edge_index(edge_index, NUM_NODES)
    src, dst = edge_index
    h = cfconv(x, w, src, dst, NUM_NODES, plan)
    message = gather(h, src, plan=plan.src) * w
    h = h + scatter(message, dst, 0, dim_size=NUM_NODES, reduce="mean", plan=plan.dst)
    return h + scatter(message, dst, 0, dim_size=NUM_NODES, reduce="max", plan=plan.dst)


def loss_and_gradients(function, x, w, edge_index):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    loss = function(x, w, edge_index).square().sum()
    return (loss.detach(), *torch.autograd.grad(loss, (x, w)))


@pytest.mark.parametrize("with_plan", [False, True])
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself, since torch 2.14
def test_opcheck(native, batch, with_plan):
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if native == "fallback":  # what is traced does not know which of the two computes
        checks.append("test_aot_dispatch_dynamic")
    opcheck = functools.partial(torch.library.opcheck, test_utils=checks)
    x, w, (src, dst) = batch
    x, w = x.requires_grad_(), w.requires_grad_()
    to_dst, to_src = torch.ops.popgeo.plan(dst, NUM_NODES), torch.ops.popgeo.plan(src, NUM_NODES)
    plan, plans = (to_dst, (*to_dst, *to_src)) if with_plan else ((), ())
    popgeo = torch.ops.popgeo
    opcheck(popgeo.plan.default, (dst, NUM_NODES))
    opcheck(popgeo.gather.default, (x, dst, *plan))
    opcheck(popgeo.cfconv.default, (x, w, src, dst, NUM_NODES, *plans))
    opcheck(popgeo.cfconv_backward.default, (x.detach().requires_grad_(), x, w, src, dst, *plans))
    for name in ("scatter_sum", "scatter_mul", "scatter_max", "scatter_min"):
        opcheck(getattr(popgeo, name).default, (w, dst, NUM_NODES, *plan))
    if with_plan:
        opcheck(popgeo.softmax.default, (w, dst, *plan))
        opcheck(popgeo.softmax_backward.default, (w.detach().requires_grad_(), w, dst, *plan))
    else:
        indptr = torch.tensor([0, 3, 3, 12])
        for name in ("segment_sum", "segment_max", "segment_min"):
            opcheck(getattr(popgeo, name).default, (w, indptr))
        opcheck(popgeo.gather_csr.default, (x[:3].detach().requires_grad_(), indptr, NUM_EDGES))


def test_a_captured_training_step_is_made_of_single_ops(native, batch):
    graph = make_fx(lambda *batch: loss_and_gradients(message_passing, *batch), tracing_mode="fake")(*batch)
    names = [str(node.target) for node in graph.graph.nodes if "popgeo" in str(node.target)]
    assert names.count("popgeo.plan.default") == 2
    assert names.count("popgeo.cfconv.default") == 1
    assert names.count("popgeo.cfconv_backward.default") == 1
    assert not any("index_add" in str(node.target) for node in graph.graph.nodes)
    another = tuple(tensor.flip(-1).contiguous() for tensor in batch)
    for one, two in zip(graph(*another), loss_and_gradients(message_passing, *another), strict=True):
        torch.testing.assert_close(one, two)


def test_compile_without_graph_breaks_forward_and_backward(native, batch):
    torch._dynamo.reset()
    compiled = torch.compile(message_passing, fullgraph=True, backend="aot_eager")
    for one, two in zip(loss_and_gradients(compiled, *batch), loss_and_gradients(message_passing, *batch), strict=True):
        torch.testing.assert_close(one, two)


def test_a_plan_made_outside_is_an_input_of_the_compiled_program(native, batch):
    torch._dynamo.reset()
    x, w, (src, dst) = batch
    compiled = torch.compile(cfconv, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        plan = EdgePlan(src=ScatterPlan.from_index(src, NUM_NODES), dst=ScatterPlan.from_index(dst, NUM_NODES))
        assert torch.equal(compiled(x, w, src, dst, NUM_NODES, plan), cfconv(x, w, src, dst, NUM_NODES, plan))
        src, dst = dst, src


def test_inductor(batch):
    torch._dynamo.reset()

    def convolve(x, w, edge_index):  # nothing but the op: inductor takes half a minute to compile one relu
        return cfconv(x, w, edge_index[0], edge_index[1], NUM_NODES)

    compiled = torch.compile(convolve, fullgraph=True)
    for one, two in zip(loss_and_gradients(compiled, *batch), loss_and_gradients(convolve, *batch), strict=True):
        torch.testing.assert_close(one, two)


class Layer(torch.nn.Module):
    def forward(self, x, w, edge_index):
        softmax = ops.scatter_softmax(w, edge_index[1], 0, dim_size=NUM_NODES)
        return message_passing(x, w * softmax, edge_index)


def test_export(native, batch):
    program = torch.export.export(Layer(), batch)
    assert torch.equal(program.module()(*batch), Layer()(*batch))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap(native, batch):
    x, w, edge_index = batch
    many = torch.stack([w, 2 * w, -w])
    out = torch.func.vmap(lambda w: message_passing(x, w, edge_index))(many)
    assert torch.equal(out, torch.stack([message_passing(x, w, edge_index) for w in many]))
    x = x.clone().requires_grad_()
    out = message_passing(x, w, edge_index)
    grads = torch.randn(3, *out.shape)
    batched = torch.autograd.grad(out, x, grads, is_grads_batched=True, retain_graph=True)[0]
    one_by_one = [torch.autograd.grad(out, x, grad, retain_graph=True)[0] for grad in grads]
    torch.testing.assert_close(batched, torch.stack(one_by_one))


def test_fake_tensors_have_the_shapes_of_real_ones(batch):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, w, edge_index = (mode.from_tensor(tensor) for tensor in batch)
        assert message_passing(x, w, edge_index).shape == (NUM_NODES, CHANNELS)
        assert scatter(w, edge_index[0], 0, dim_size=9, reduce="mul").shape == (9, CHANNELS)
        with pytest.raises(ValueError, match="pass dim_size="):
            scatter(w, edge_index[0], 0)
        with pytest.raises(ValueError, match="x has shape"):
            cfconv(x, w[:, :2], edge_index[0], edge_index[1], NUM_NODES)


def test_inference_mode_needs_nothing(native, batch):
    with torch.inference_mode():
        x, w, edge_index = (tensor.clone() for tensor in batch)
        assert torch.equal(message_passing(x, w, edge_index), message_passing(*batch))


def test_a_tensor_of_another_class_goes_through_torchs_dispatcher():
    class Own(torch.Tensor):
        pass

    tensor = torch.ones(2)
    assert is_eager((tensor, torch.nn.Parameter(tensor), None, 3))
    assert not is_eager((tensor, tensor.as_subclass(Own)))
    with torch.no_grad():
        assert is_direct(tensor)
    assert not is_direct(tensor.clone().requires_grad_())


def test_the_shortest_way_is_taken_that_serves():
    leaf, plain, ways = torch.ones(2, requires_grad=True), torch.ones(2), ("autograd", "torch.func")
    op = RegisteredOp("gather", lambda *_: "kernel", [SimpleNamespace(apply=lambda *_, way=way: way) for way in ways])
    op.packet = lambda *_: "dispatcher"
    assert op(plain, None, 3) == "kernel"
    assert op(plain, leaf) == op(3, leaf) == "autograd"
    with torch.no_grad():
        assert op(leaf) == "kernel"
    with FakeTensorMode():
        assert op(plain) == "dispatcher"
    seen = []
    torch.func.vmap(lambda x: seen.append(op(x)) or x)(plain)
    assert seen == ["torch.func"]
    assert RegisteredOp("gather", lambda *_: "kernel")(leaf) == "kernel"  # an op without a derivative
