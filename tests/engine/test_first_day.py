"""Mistakes at the first use: each error message says what to do."""

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from popgeo import FixedSizeCollater, FixedSizeOptions, compile_step
from popgeo.loader import stream_batches
from popgeo.nn import SchNet


class Square(nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()


def test_a_batch_where_the_model_takes_a_tensor_of_another_name_is_told_with_what_to_pass():
    class Inputs(Square):
        def forward(self, inputs):
            return super().forward(inputs)

    model = Inputs(2, 1)
    batch = Batch.from_data_list([Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 1, dtype=torch.long))])
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    expected = r"given a DataBatch.*If the model takes tensors, pass those of the batch, .*\(inputs\)"
    with pytest.raises(ValueError, match=expected):
        step(batch)
    assert step(batch.x).shape == ()


def test_options_that_are_a_dictionary_are_refused_when_the_step_is_made():
    model = Square(2, 1)
    with pytest.raises(ValueError, match=r"options is a dict; pass popgeo.StepOptions\(device_iterations"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), options={"device_iterations": 2})


def test_a_stream_is_given_a_collater():
    with pytest.raises(ValueError, match=r"collater is a FixedSizeOptions; pass popgeo.FixedSizeCollater\(options\)"):
        next(stream_batches([], FixedSizeOptions(8, 9, 3)))
    assert list(stream_batches([], FixedSizeCollater(FixedSizeOptions(8, 9, 3)))) == []


def test_images_in_a_cell_without_their_shifts_are_refused():
    model, pos = SchNet(8, 8, num_interactions=1, cutoff=3.0), torch.zeros(2, 3)
    edges, z = torch.zeros(2, 6, dtype=torch.long), torch.tensor([29, 0])
    with pytest.raises(ValueError, match=r"6 edges join an atom to itself.* Pass edge_shift=batch.edge_shift"):
        model(z, pos, torch.tensor([0, 1]), edges, num_graphs=2)
    shift = 2.5 * torch.cat([torch.eye(3), -torch.eye(3)])
    assert model(z, pos, torch.tensor([0, 1]), edges, num_graphs=2, edge_shift=shift).isfinite().all()
    assert model(z, pos, torch.tensor([0, 1]), edges + 1, num_graphs=2).isfinite().all()  # edges of padding
