"""Claims about TransE, DistMult, ComplEx and RotatE against PyG's, and from either end of a triple."""

import pytest
import torch
import torch_geometric.nn.kge as pyg
from torch.testing import assert_close

from popgeo.nn import ComplEx, DistMult, KnowledgeGraphModel, RotatE, TransE, TripleEnd

SIZES = (9, 4, 6)  # entities, relations, channels
PAIRS = {
    "TransE": (TransE, pyg.TransE, {}),
    "TransE, Euclidean": (TransE, pyg.TransE, {"p_norm": 2.0}),
    "DistMult": (DistMult, pyg.DistMult, {}),
    "ComplEx": (ComplEx, pyg.ComplEx, {}),
    "RotatE": (RotatE, pyg.RotatE, {"margin": 3.0}),
}
EACH_MODEL = pytest.mark.parametrize("name", PAIRS)


def make_pair(name: str) -> tuple[KnowledgeGraphModel, pyg.KGEModel]:
    """Return our model and PyG's model with the same parameters."""
    torch.manual_seed(0)
    ours, theirs, choices = PAIRS[name]
    pair = ours(*SIZES, **choices).double(), theirs(*SIZES, **choices).double()
    pair[0].load_state_dict(pair[1].state_dict())
    return pair


@pytest.fixture
def triples(generator: torch.Generator) -> torch.Tensor:
    return torch.stack([torch.randint(n, (20,), generator=generator) for n in (SIZES[0], SIZES[1], SIZES[0])])


@EACH_MODEL
def test_a_checkpoint_of_pyg_gives_the_same_scores_and_gradients(name: str, triples: torch.Tensor):
    pair = make_pair(name)
    scores = [model(*triples) for model in pair]
    assert_close(*scores)
    for score in scores:
        score.square().sum().backward()
    gradients = [{name: p.grad for name, p in model.named_parameters()} for model in pair]
    assert gradients[0].keys() == gradients[1].keys()
    assert_close(*gradients)


@EACH_MODEL
@pytest.mark.parametrize("side", TripleEnd)
def test_candidates_for_either_end_score_as_the_triples_that_they_make(
    name: str, side: TripleEnd, triples: torch.Tensor
):
    model, (head, relation, tail) = make_pair(name)[0], triples
    candidates = torch.arange(SIZES[0])
    table = model.score_candidates(head if side is TripleEnd.TAIL else tail, relation, side, candidates)
    for entity in candidates:
        here = entity.expand_as(head)
        ends = (head, relation, here) if side is TripleEnd.TAIL else (here, relation, tail)
        assert_close(table[:, entity], model(*ends))


def test_scores_are_those_worked_out_by_hand():
    one = torch.tensor([0]), torch.tensor([0]), torch.tensor([1])
    rotate, product, moved = RotatE(2, 1, 1, margin=5.0), ComplEx(2, 1, 1), TransE(2, 1, 2, p_norm=1.0)
    with torch.no_grad():
        for model, imaginary in ((rotate, True), (product, True)):
            model.node_emb.weight.copy_(torch.tensor([[2.0], [0.0]]))  # head 2, tail -3i
            model.node_emb_im.weight.copy_(torch.tensor([[0.0], [-3.0]]))
            assert imaginary
        rotate.rel_emb.weight.fill_(torch.pi / 2)  # turns 2 to 2i, five from -3i
        product.rel_emb.weight.fill_(1.0)
        product.rel_emb_im.weight.fill_(4.0)  # Re(2 (1 + 4i) 3i) = -24
        moved.node_emb.weight.copy_(torch.tensor([[3.0, 1.0], [-1.0, 1.0]]))  # on the sphere (.75, .25), (-.5, .5)
        moved.rel_emb.weight.copy_(torch.tensor([[-1.0, 0.0]]))  # (-.25, .25), half a unit away
    assert_close(rotate(*one), torch.tensor([0.0]))
    assert_close(product(*one), torch.tensor([-24.0]))
    assert_close(moved(*one), torch.tensor([-0.5]))


def test_distmult_cannot_tell_the_ends_apart_and_complex_can(triples: torch.Tensor):
    head, relation, tail = triples
    symmetric, directed = make_pair("DistMult")[0], make_pair("ComplEx")[0]
    assert_close(symmetric(head, relation, tail), symmetric(tail, relation, head))
    assert (directed(head, relation, tail) - directed(tail, relation, head)).abs().max() > 1e-3


def test_the_cubes_of_complex_rows_are_those_of_their_moduli():
    rows = torch.tensor([[3.0, 0.0, 4.0, 2.0]])  # |3 + 4i| = 5, |2i| = 2
    assert ComplEx(2, 1, 2).cubes(rows).item() == pytest.approx(125 + 8)
    assert DistMult(2, 1, 4).cubes(-rows).item() == pytest.approx(27 + 64 + 8)


def test_a_model_without_entities_is_refused():
    with pytest.raises(ValueError, match="num_nodes is 0; it must be at least 1"):
        DistMult(0, 1, 4)
