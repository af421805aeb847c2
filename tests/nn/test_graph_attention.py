"""Claims about attention within graphs; the contracts cover padding and compilation."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo import ipu
from popgeo.nn import AttentionForm, GraphAttention, SameGraph, cheaper_form

SIZES = torch.tensor([3, 0, 5, 1])
BATCH = torch.arange(4).repeat_interleave(SIZES)
FORMS = pytest.mark.parametrize("form", ["pack", "padded"])


def attention(heads: int = 2) -> GraphAttention:
    torch.manual_seed(0)
    return GraphAttention(4, heads).double()


def nodes() -> Tensor:
    return torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@FORMS
def test_two_nodes_with_equal_scores_average_their_values(form: str):
    layer = GraphAttention(1)
    layer.load_state_dict(
        {
            "in_proj_weight": torch.tensor([[0.0], [0.0], [1.0]]),
            "in_proj_bias": torch.zeros(3),
            "out_proj.weight": torch.tensor([[2.0]]),
            "out_proj.bias": torch.tensor([1.0]),
        }
    )
    same_graph = SameGraph.of(torch.tensor([0, 0, 1]), 2, max_num_nodes=2, form=form)
    out = layer(torch.tensor([[1.0], [5.0], [7.0]]), same_graph)
    assert_close(out.flatten(), torch.tensor([7.0, 7.0, 15.0]))  # 2 * (1 + 5) / 2 + 1, twice, and 2 * 7 + 1


@FORMS
def test_each_graph_attends_as_torchs_attention_does_to_it_alone(form: str):
    layer, x = attention(), nodes()
    reference = nn.MultiheadAttention(4, 2, batch_first=True).double()
    reference.load_state_dict(layer.state_dict())
    out = layer(x, SameGraph.of(BATCH, 4, max_num_nodes=5, form=form))
    for rows, found in zip(x.split(SIZES.tolist()), out.split(SIZES.tolist()), strict=True):
        if len(rows):
            assert_close(found, reference(rows, rows, rows)[0])


@FORMS
def test_a_bias_of_a_pair_is_added_to_its_score_in_its_head(form: str):
    layer, x = attention(), nodes()
    pairs = torch.zeros(9, 5, 2, dtype=torch.float64)
    pairs[3, 4, 1] = 1e3  # the first node of the graph of five looks at the last one only, in the second head
    same_graph = SameGraph.of(BATCH, 4, max_num_nodes=5, form=form)
    expected, found = layer(x, same_graph), layer(x, same_graph, same_graph.bias_of(pairs))
    changed = (found - expected).abs().amax(1) > 1e-9
    assert changed.nonzero().flatten().tolist() == [3]
    value = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)[7, 8:]
    layer.out_proj.weight.data = torch.eye(4, dtype=torch.float64)
    assert_close(layer(x, same_graph, same_graph.bias_of(pairs))[3, 2:], value[2:])


@FORMS
def test_scores_far_apart_leave_neither_nan_nor_a_denormal_weight(form: str):
    layer = GraphAttention(1)
    layer.in_proj_weight.data = torch.tensor([[0.0], [1.0], [1.0]])
    layer.in_proj_bias.data = torch.tensor([1.0, 0.0, 0.0])
    x = torch.tensor([[0.0], [-95.0], [-1e30], [7.0]], requires_grad=True)
    out = layer(x, SameGraph.of(torch.tensor([0, 0, 0, 1]), 2, max_num_nodes=3, form=form))
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert out.isfinite().all()
    assert slope[1:3].abs().max() == 0  # e^-95 is a denormal number, so it is none at all


@pytest.mark.parametrize(
    ("num_nodes", "num_graphs", "max_num_nodes", "form"),
    [(60, 9, 20, "pack"), (60, 9, 14, "pack"), (728, 36, 38, "padded"), (9999, 2, None, "pack")],
)
def test_few_graphs_are_one_matrix_and_many_are_padded(
    num_nodes: int, num_graphs: int, max_num_nodes: int | None, form: str
):
    assert cheaper_form(num_nodes, num_graphs, max_num_nodes) is AttentionForm(form)


@pytest.mark.parametrize("shape", [(60, 9, 24), (1456, 72, 38)], ids=["a pack of GPS++", "a batch of ZINC"])
def test_the_report_shows_fewer_cycles_for_the_form_that_is_chosen(shape: tuple[int, int, int]):
    num_nodes, num_graphs, max_num_nodes = shape
    layer, batch = GraphAttention(8, 2), torch.arange(num_nodes) * (num_graphs - 1) // num_nodes

    def cycles(form: AttentionForm) -> float:
        def attend(x: Tensor, batch: Tensor) -> Tensor:
            return layer(x, SameGraph.of(batch, num_graphs, max_num_nodes, form=form))

        return ipu.compile(attend, [torch.randn(num_nodes, 8), batch]).report.total_cycles

    assert min(AttentionForm, key=cycles) is cheaper_form(*shape)


def test_a_graph_larger_than_its_slots_is_refused_and_is_nan_where_nothing_can_be_raised():
    with pytest.raises(ValueError, match="has 5 nodes, max_num_nodes is 4"):
        SameGraph.of(BATCH, 4, max_num_nodes=4, form="padded")
    same_graph = SameGraph.of(BATCH, 4, max_num_nodes=4, form="padded", nodes_mask=BATCH != 2)
    assert attention()(nodes(), same_graph).isfinite().all()
    layer = attention()

    def attend(x: Tensor, batch: Tensor) -> Tensor:
        return layer(x, SameGraph.of(batch, 4, max_num_nodes=4, form="padded"))

    compiled = ipu.compile(attend, [nodes(), BATCH])
    assert_close(compiled(nodes(), BATCH).isnan().all(1), BATCH == 2)


def test_what_cannot_be_attended_to_is_refused():
    with pytest.raises(ValueError, match="heads must divide"):
        GraphAttention(6, heads=4)
    with pytest.raises(ValueError, match="needs the nodes of the largest graph"):
        SameGraph.of(BATCH, 4, form="padded")
    with pytest.raises(ValueError, match=r"pairs has shape \(9, 3, 2\); it must be \(any, 5, any\)"):
        SameGraph.of(BATCH, 4, max_num_nodes=5, form="padded").bias_of(torch.zeros(9, 3, 2))
