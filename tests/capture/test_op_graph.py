"""What a captured graph says of its inputs."""

import pytest
import torch

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, Role
from tests.support.small_models import GraphConvolutions, make_batch


@pytest.mark.parametrize("role", Role)
def test_an_input_is_written_with_its_role_and_read_again(role):
    given = Input(role, "layers.0:weight")
    assert str(given) == f"{role.value}:layers.0:weight"
    assert Input.parse(str(given)) == given


def test_what_names_no_role_is_no_input():
    with pytest.raises(ValueError, match="weight"):
        Input.parse("weight:0")


def test_a_captured_model_has_its_inputs_in_their_roles():
    model, batch = GraphConvolutions(), make_batch(0, torch.float32)
    graph = capture(model, bind(model.forward, **batch)).graph
    named = {role: [given.name for given in graph.inputs_of(role)] for role in Role}
    assert named[Role.PARAMETER] == [name for name, _ in model.named_parameters()]
    assert named[Role.BUFFER] == [name for name, _ in model.named_buffers()]
    assert named[Role.ARGUMENT] == list(batch)
    assert sum(map(len, named.values())) == len(graph.inputs)
