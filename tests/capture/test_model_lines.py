"""Among the functions on the stack, the named one is a function that a user can change."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.utils import one_hot

from popgeo import ops
from popgeo.capture import model_lines
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.nn import GIN

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def graph_of(model, *inputs: Tensor) -> OpGraph:
    return capture(model, bind(getattr(model, "forward", model), *inputs)).graph


def places(graph: OpGraph) -> set[tuple[str, str, str]]:
    """Return file, function and code of each operation's line."""
    found = set()
    for op in graph.ops:
        place, _, code = op.source.partition(": ")
        where, _, function = place.partition(" in ")
        found.add((Path(where.rpartition(":")[0]).name, function, code))
    return found


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return doubled(self.inner(x, *more))


def doubled(x: Tensor) -> Tensor:
    return 2 * x


HERE = Path(__file__).name


def test_each_function_of_the_user_is_named_with_its_own_line():
    assert places(graph_of(Twice(nn.Linear(2, 2)), torch.ones(3, 2))) == {
        (HERE, "forward", "return doubled(self.inner(x, *more))"),  # torch's Linear is not user code
        (HERE, "doubled", "return 2 * x"),
    }


def test_a_layer_of_pyg_is_named_by_the_users_line_that_calls_it():
    called = (HERE, "forward", "return doubled(self.inner(x, *more))")
    layer = GCNConv(2, 2, add_self_loops=False)
    assert places(graph_of(Twice(layer), torch.ones(3, 2), EDGES)) == {called, (HERE, "doubled", "return 2 * x")}


def test_a_model_that_is_pygs_from_top_to_bottom_is_named_by_its_innermost_line():
    files = {file for file, _, _ in places(graph_of(GCNConv(2, 2, add_self_loops=False), torch.ones(3, 2), EDGES))}
    assert {"gcn_conv.py", "linear.py"} <= files  # the layer and the product that it calls
    assert HERE not in files


def test_a_model_of_ours_is_named_by_its_lines_and_an_operation_of_ours_by_its_caller():
    files = {file for file, _, _ in places(graph_of(GIN(2, 4, 2), torch.ones(3, 2), EDGES))}
    assert "gin.py" in files
    assert files <= {path.name for path in Path(model_lines.__file__).parents[1].joinpath("nn").rglob("*.py")}

    def pooled(x: Tensor) -> Tensor:
        return ops.global_mean_pool(x, torch.tensor([0, 0, 1]), 2)

    line = "return ops.global_mean_pool(x, torch.tensor([0, 0, 1]), 2)"
    assert places(graph_of(pooled, torch.ones(3, 2))) == {(HERE, "pooled", line)}


def test_lines_above_the_model_are_not_its_own():
    def stop():
        return model_lines.model_frame(stop.__code__), model_lines.files(stop.__code__)

    assert stop() == (None, set())  # no frame between this test and `stop`

    def below():
        return model_lines.model_frame(above.__code__), model_lines.files(above.__code__)

    def above():
        return below()

    frame, files = above()
    assert frame.f_code is below.__code__
    assert files == {__file__}
    assert model_lines.describe(None) == ""


def test_a_kept_step_depends_on_the_files_of_pyg_and_of_the_user_and_on_none_of_torch():
    def model(x: Tensor) -> Tensor:
        return nn.functional.relu(one_hot(EDGES[0], 3).sum(0).unsqueeze(1) * x)

    files = capture(model, bind(model, torch.ones(3, 2))).files
    assert __file__ in files
    assert any(file.endswith("_one_hot.py") for file in files)
    assert not any("/torch/" in file for file in files)
