"""Claims about NBFNet: paths by hand, and scores that depend only on the graph that a query sees."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo import compile_forward
from popgeo.nn import NBFNet, own_links
from popgeo.nn.models.bellman_ford import QueriedGraph, pna, total
from popgeo.testing import check_static_capture
from tests.support.denormals import DenormalsMade

RELATIONS, CHANNELS = 6, 8
EACH = pytest.mark.parametrize("aggregation", ["sum", "pna"])


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Queries and their answers on a graph, as the model takes them."""

    head: Tensor
    relation: Tensor
    tail: Tensor
    edge_index: Tensor
    edge_type: Tensor
    nodes_mask: Tensor
    edges_mask: Tensor


def make_questions(num_nodes: int = 9, num_facts: int = 14, num_queries: int = 4) -> Questions:
    """Return random facts with their inverses, and queries that are some of the facts."""
    generator = torch.Generator().manual_seed(0)
    head, tail = torch.randint(num_nodes, (2, num_facts), generator=generator)
    relation = torch.randint(RELATIONS // 2, (num_facts,), generator=generator)
    edge_index = torch.stack([torch.cat([head, tail]), torch.cat([tail, head])])
    edge_type = torch.cat([relation, relation + RELATIONS // 2])
    asked = torch.randperm(2 * num_facts, generator=generator)[:num_queries]
    return Questions(
        head=edge_index[0, asked],
        relation=edge_type[asked],
        tail=edge_index[1, asked],
        edge_index=edge_index,
        edge_type=edge_type,
        nodes_mask=torch.ones(num_nodes, dtype=torch.bool),
        edges_mask=torch.ones(2 * num_facts, dtype=torch.bool),
    )


def make_model(aggregation: str, dtype: torch.dtype = torch.float64, num_layers: int = 3) -> NBFNet:
    torch.manual_seed(0)
    return NBFNet(RELATIONS, CHANNELS, num_layers=num_layers, aggregation=aggregation).to(dtype)


def scores(model: NBFNet, q: Questions, hidden: Tensor | None = None, **kwargs: object) -> Tensor:
    hidden = own_links(q.head, q.relation, q.tail, q.edge_index, q.edge_type, RELATIONS) if hidden is None else hidden
    masks = {"hidden": hidden, "nodes_mask": q.nodes_mask, "edges_mask": q.edges_mask}
    return model(q.head, q.relation, q.edge_index, q.edge_type, num_nodes=len(q.nodes_mask), **masks, **kwargs)


def loss_and_gradients(model: NBFNet, q: Questions, num_queries: int) -> list[Tensor]:
    score = scores(model, q)[:num_queries]
    loss = torch.where(q.nodes_mask, score, 0.0).square().sum()
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def without(q: Questions, query: int, hidden: Tensor) -> Questions:
    """Return one query on the graph that it sees, with its hidden edges removed."""
    keep = q.edges_mask & ~hidden[query]
    one = slice(query, query + 1)
    return replace(
        q,
        head=q.head[one],
        relation=q.relation[one],
        tail=q.tail[one],
        edge_index=q.edge_index[:, keep],
        edge_type=q.edge_type[keep],
        edges_mask=q.edges_mask[keep],
    )


def padded(q: Questions, nodes: int, edges: int, queries: int) -> Questions:
    """Add empty slots that hold garbage; an empty query repeats no other query."""
    more = torch.full((edges,), 10**6)
    return replace(
        q,
        head=torch.cat([q.head, torch.zeros(queries, dtype=torch.int64)]),
        relation=torch.cat([q.relation, torch.zeros(queries, dtype=torch.int64)]),
        tail=torch.cat([q.tail, torch.zeros(queries, dtype=torch.int64)]),
        edge_index=torch.cat([q.edge_index, more.expand(2, -1)], dim=1),
        edge_type=torch.cat([q.edge_type, more]),
        nodes_mask=torch.cat([q.nodes_mask, torch.zeros(nodes, dtype=torch.bool)]),
        edges_mask=torch.cat([q.edges_mask, torch.zeros(edges, dtype=torch.bool)]),
    )


def test_one_iteration_is_what_it_is_by_hand():
    """0 -> 1 and 2 -> 1, the query starts at node 0 with 3, and edges multiply by 2 and 5."""
    src, dst = torch.tensor([0, 2]), torch.tensor([1, 1])
    keep, head, query = torch.ones(1, 2, dtype=torch.bool), torch.tensor([0]), torch.tensor([[3.0]])
    graph = QueriedGraph.of(
        torch.stack([src, dst]), torch.tensor([0, 1]), 2, keep, head, query, torch.ones(3, dtype=torch.bool)
    )
    w = graph.relations(torch.tensor([[[2.0], [5.0]]]))
    h = torch.tensor([3.0, 0.0, -1.0]).view(3, 1, 1)
    assert graph.boundary.flatten().tolist() == [3, 0, 0]
    assert total(h, w, graph).flatten().tolist() == [3, 1, 0]  # 3 * 2 - 1 * 5 at node 1
    found = pna(h, w, graph)[1, 0]
    log = torch.tensor(3.0).log()  # of the degree, the boundary counted; 0 at the other two nodes
    expected = torch.tensor([1 / 3, 6.0, -5.0, ((36 + 25) / 3 - 1 / 9) ** 0.5])
    assert_close(found, torch.cat([expected, expected * 3, expected / 3]))
    assert_close(log / (log / 3), torch.tensor(3.0))


@EACH
def test_a_hidden_edge_is_as_good_as_gone_for_its_query_and_only_for_that(aggregation: str):
    model, q = make_model(aggregation), make_questions()
    hidden = own_links(q.head, q.relation, q.tail, q.edge_index, q.edge_type, RELATIONS)
    assert bool((hidden.sum(1) >= 2).all())  # the fact and its inverse
    found = scores(model, q)
    for query in range(len(q.head)):
        alone = without(q, query, hidden)
        nothing = torch.zeros(1, len(alone.edge_type), dtype=torch.bool)
        assert_close(found[query], scores(model, alone, hidden=nothing)[0])
    assert not torch.allclose(found, scores(model, q, hidden=torch.zeros_like(hidden)))


@EACH
def test_padding_changes_no_score_loss_or_gradient_whatever_stands_in_it(aggregation: str):
    model, q = make_model(aggregation), make_questions()
    expected, (num_queries, num_nodes) = scores(model, q), (len(q.head), len(q.nodes_mask))
    for free in ((1, 1, 1), (7, 0, 0), (0, 7, 3), (40, 90, 2)):
        found = scores(model, padded(q, *free))
        assert_close(found[:num_queries, :num_nodes], expected)
        assert bool((found[:, num_nodes:] == -torch.inf).all())
        assert_close(
            loss_and_gradients(model, padded(q, *free), num_queries), loss_and_gradients(model, q, num_queries)
        )


@EACH
def test_the_order_of_edges_and_of_nodes_does_not_matter(aggregation: str):
    model, q = make_model(aggregation), make_questions()
    edges, nodes = torch.randperm(len(q.edge_type)), torch.randperm(len(q.nodes_mask))
    renumbered = replace(
        q,
        head=nodes[q.head],
        tail=nodes[q.tail],
        edge_index=nodes[q.edge_index[:, edges]],
        edge_type=q.edge_type[edges],
    )
    assert_close(scores(model, renumbered)[:, nodes], scores(model, q))


@EACH
def test_scores_of_chosen_tails_are_those_among_all(aggregation: str):
    model, q = make_model(aggregation), make_questions()
    tails = torch.randint(len(q.nodes_mask), (len(q.head), 3))
    assert_close(scores(model, q, tails=tails), scores(model, q).gather(1, tails))


def test_a_node_that_no_path_reaches_is_told_from_another_by_nothing():
    model = make_model("sum")
    edge_index, edge_type = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 3])
    found = model(torch.tensor([0]), torch.tensor([1]), edge_index, edge_type, num_nodes=4)[0]
    assert found[2] == found[3]
    assert len(set(found[:3].tolist())) == 3


class Training(nn.Module):
    def __init__(self, model: NBFNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, q: dict[str, Tensor]) -> Tensor:
        questions = Questions(**q)
        return torch.where(questions.nodes_mask, scores(self.model, questions), 0.0).square().mean()


@EACH
def test_a_compiled_training_step_is_static_and_equals_eager(aggregation: str):
    q = padded(make_questions(), 3, 4, 1)
    q = replace(q, edge_index=q.edge_index.clamp(max=11), edge_type=q.edge_type.clamp(max=RELATIONS - 1))
    check_static_capture(Training(make_model(aggregation, num_layers=2)), dict(vars(q)))


@EACH
def test_no_activation_and_no_gradient_is_denormal(aggregation: str, native: str):
    model, q = make_model(aggregation, torch.float32), padded(make_questions(), 3, 4, 1)
    with DenormalsMade() as made:
        loss_and_gradients(model, q, len(q.head))
    assert made.num_results > 50
    assert made.found == []


def test_the_same_weights_answer_on_another_graph():
    model, q = make_model("sum"), make_questions()
    other = make_questions(num_nodes=30, num_facts=50, num_queries=2)
    before = copy.deepcopy(model.state_dict())
    assert scores(model, q).shape == (4, 9)
    assert scores(model, other).shape == (2, 30)
    assert_close(dict(model.state_dict()), dict(before))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"relation": torch.zeros(3, dtype=torch.int64)}, "relation"),
        ({"tails": torch.zeros(9, dtype=torch.int64)}, "tails"),
        ({"hidden": torch.zeros(28, dtype=torch.bool)}, "hidden"),
        ({"nodes_mask": torch.ones(8, dtype=torch.bool)}, "nodes_mask"),
        ({"edge_index": torch.zeros(2, 27, dtype=torch.int64)}, "edge_index"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shapes_that_do_not_fit_are_refused_by_name(arguments: dict[str, Tensor], named: str):
    q = make_questions()
    given = {"head": q.head, "relation": q.relation, "edge_index": q.edge_index, "edge_type": q.edge_type}
    with pytest.raises(ValueError, match=f"^{named} has shape"):
        make_model("sum")(**(given | arguments), num_nodes=9)


def test_an_unknown_aggregation_and_no_layer_are_refused():
    with pytest.raises(ValueError, match="'mean'"):
        NBFNet(2, aggregation="mean")
    with pytest.raises(ValueError, match="num_layers is 0"):
        NBFNet(2, num_layers=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": torch.tensor([0, 3])}, "head holds 3; it is 0 to 2"),
        ({"head": torch.tensor([-1, 0])}, "head holds -1"),
        ({"edge_type": torch.tensor([0, 2, 4, 3])}, "edge_type holds 4; it is 0 to 3"),
        ({"hidden": torch.ones(2, 4, dtype=torch.long)}, "hidden is torch.int64; it is boolean"),
        ({"edges_mask": torch.ones(4, dtype=torch.uint8)}, "edges_mask is torch.uint8; it is boolean"),
    ],
)
def test_heads_relations_and_masks_that_do_not_fit_are_refused(change, message, compiled):
    given = {"head": torch.tensor([0, 2]), "relation": torch.tensor([0, 3]), "edge_type": torch.tensor([0, 2, 1, 3])}
    given["edge_index"] = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    model = NBFNet(4, 8, 2)
    if compiled and "boolean" not in message:
        assert compile_forward(model)(**(given | change), num_nodes=3).isnan().all()
    else:
        with pytest.raises(ValueError, match=message):
            model(**(given | change), num_nodes=3)
    with pytest.raises(ValueError, match="num_relations is 3"):
        own_links(*[torch.tensor([0])] * 3, given["edge_index"], given["edge_type"], num_relations=3)
