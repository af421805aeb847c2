"""The function that writes into given memory computes the same as the plain one, and is used only if torch has it."""

import pytest
import torch

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Op, Ref
from popgeo.engine import out_variants
from popgeo.engine.compile_step import compile_step
from popgeo.engine.graph_runner import GraphRunner

X, Y = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[2.0, 2.0], [0.5, -1.0]])
ROWS = torch.tensor([1, 0])
INTO = {
    "aten.add.Tensor": (X, Y),
    "aten.mul.Tensor": (X, Y),
    "aten.mul.Scalar": (X, 3.0),
    "aten.sub.Scalar": (X, 3.0),
    "aten.mm.default": (X, Y),
    "aten.addmm.default": (X[0], X, Y),
    "aten.exp.default": (X,),
    "aten.where.self": (X > 0, X, Y),
    "aten.pow.Tensor_Scalar": (X, 2),
    "aten.sum.dim_IntList": (X, [0]),
    "aten.amax.default": (X, [1]),
    "aten.index_select.default": (X, 0, ROWS),
    "aten.index_add.default": (X, 0, ROWS, Y),
    "aten.cat.default": ([X, Y], 1),
    "aten.gt.Scalar": (X, 0),
    "aten.topk.default": (X, 1),
}


@pytest.fixture(autouse=True)
def _each_test_asks_anew() -> None:
    """Clear the caches, so that no test sees the answers of another."""
    for function in (out_variants.into, out_variants.plain, out_variants.returns_list, out_variants._is_pointwise):
        function.cache_clear()


@pytest.mark.parametrize("target", INTO)
def test_results_in_given_memory_are_those_of_the_plain_function(target):
    function, names = out_variants.into(target)
    expected = out_variants.plain(target)(*INTO[target])
    expected = expected if isinstance(expected, tuple) else (expected,)
    given = [torch.full_like(tensor, 7) for tensor in expected]
    places = [tensor.data_ptr() for tensor in given]
    function(*INTO[target], **dict(zip(names, given, strict=True)))
    assert [tensor.data_ptr() for tensor in given] == places
    for mine, other in zip(given, expected, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    "target", ["popgeo.gather.default", "aten.add_.Tensor", "aten.t.default", "aten.median.default"]
)
def test_what_torch_cannot_write_into_given_memory_is_called_plainly(target):
    assert out_variants.into(target) is None


def operations(function, *inputs):
    graph = capture(function, bind(function, *inputs)).graph
    return graph, {op.target.split(".")[1]: op for op in graph.ops}


def test_torch_writes_most_results_into_given_memory():
    def function(x, y):
        norm = torch.nn.functional.batch_norm(x, torch.zeros(2), torch.ones(2), training=True)
        return x.t() + 1, x.clone(), torch.zeros_like(x), x.new_empty(3), x.roll(1, 0), norm

    graph, ops = operations(function, X, Y)
    new = {name for name, op in ops.items() if not graph.is_view(op) and out_variants.allocates(graph, op)}
    assert new == {"roll", "native_batch_norm"}


def test_only_what_works_by_element_may_overwrite_an_operand():
    _, ops = operations(lambda x, y: (x * 2 + y.exp(), x @ y, x.index_select(0, ROWS), torch.cat([x, y])), X, Y)
    assert {name for name, op in ops.items() if out_variants.is_elementwise(op)} == {"mul", "add", "exp"}


@pytest.mark.parametrize(
    ("target", "made"),
    [
        ("aten.clone.default", [5, 5]), ("aten._to_copy.default", [5, 5]), ("aten.zeros.default", [0, 0]),
        ("aten.zeros_like.default", [0, 0]), ("aten.new_zeros.default", [0, 0]), ("aten.ones.default", [1, 1]),
        ("aten.ones_like.default", [1, 1]), ("aten.new_ones.default", [1, 1]), ("aten.full.default", None),
        ("aten.add.Tensor", None),
    ],
)  # fmt: skip
def test_copies_and_fills_are_written_in_place(target, made):
    tensors = {0: torch.full((2,), 5.0), 1: torch.full((2,), 7.0)}
    call = out_variants.copy_or_fill(Op(target=target, args=(Ref(0),), outputs=(1,)), tensors)
    assert (call if call is None else call().tolist()) == made


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"])
def test_a_loss_is_that_of_torch_and_nothing_is_printed(name, reduction, capfd):
    def function(x, y):
        return getattr(torch.nn.functional, name)(x.sigmoid(), y.sigmoid(), reduction=reduction)

    runner = GraphRunner(capture(function, bind(function, X, Y)).graph, {})
    for _ in range(2):
        torch.testing.assert_close(runner.run([X, Y])[0], function(X, Y))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("target", "function", "names"),
    [
        ("aten.mm.default", torch.mm, ("out",)),
        ("aten.mul.Scalar", torch.mul, ("out",)),
        ("aten.cat.default", torch.cat, ("out",)),
        ("aten.topk.default", torch.ops.aten.topk.values._op, ("values", "indices")),
        ("aten.relu.default", None, None),
        ("aten.mse_loss.default", None, None),
        ("aten.repeat.default", None, None),  # torch's function with a place computes as usual, and copies
        ("aten.split.Tensor", None, None),
        ("popgeo.identity_loss.default", None, None),
    ],
)
def test_torchs_own_bindings_are_called_where_there_is_one_place(target, function, names):
    assert out_variants.into(target) == (None if function is None else (function, names))


def test_one_tensor_is_told_from_a_list_and_from_several():
    targets = "aten.unbind.int", "aten.split.Tensor", "aten.topk.default", "aten.cos.default"
    assert [out_variants.returns_list(target) for target in targets] == [True, True, False, False]


def test_what_torch_cannot_write_into_given_memory_overwrites_nothing():
    targets = "aten.roll.default", "aten.relu_.default", "aten.mul.Scalar", "aten.add.Tensor", "aten.mm.default"
    found = [out_variants.is_elementwise(Op(target=target, args=(), outputs=(0,))) for target in targets]
    assert found == [False, False, True, True, False]


@pytest.mark.parametrize("dim", [0, 1])
def test_a_kernel_that_writes_row_after_row_does_so_only_where_its_result_lies_so(dim):
    class Scores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-2, 2, 24).view(4, 6).cos())

        def forward(self, x):
            likely = (x * self.weight).log_softmax(dim)  # its gradient comes transposed out of a batched product
            return torch.einsum("ij,kj->ik", x, likely).sin().sum()

    x = torch.linspace(-1, 1, 24).view(4, 6).exp()
    eager, compiled = Scores(), Scores()
    eager(x).backward()
    torch.optim.SGD(eager.parameters(), lr=1.0).step()
    compile_step(compiled, torch.optim.SGD(compiled.parameters(), lr=1.0))(x)
    torch.testing.assert_close(compiled.weight, eager.weight)
