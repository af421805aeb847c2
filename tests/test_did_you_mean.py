"""The error of a misspelt argument names the function and the intended argument."""

import inspect

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import popgeo
from popgeo import ipu
from popgeo.nn import PaiNN, SchNet

LINEAR = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("call", "wrong", "right"),
    [
        (ipu.Options, "gradient_acumulation", "gradient_accumulation"),
        (ipu.Options, "matmul_proporton", "matmul_proportion"),
        (popgeo.StepOptions, "device_iteration", "device_iterations"),
        (popgeo.FixedSizeOptions, "num_node", "num_nodes"),
        (popgeo.FixedSizeBatchSampler, "num_egdes", "num_edges"),
        (lambda **kwargs: popgeo.Predictor(LINEAR, **kwargs), "bach_size", "batch_size"),
        (lambda **kwargs: popgeo.compile_step(LINEAR, **kwargs), "optimzer", "optimizer"),
        (lambda **kwargs: popgeo.training_model(LINEAR, **kwargs), "option", "options"),
        (SchNet, "num_interaction", "num_interactions"),
        (PaiNN, "cutof", "cutoff"),
    ],
)
def test_what_was_meant_is_named(call, wrong: str, right: str):
    with pytest.raises(TypeError, match=rf"^\w+ has no argument '{wrong}'\. Did you mean '{right}'\?$"):
        call(**{wrong: 3})


@pytest.mark.parametrize(
    ("call", "switch"),
    [
        (ipu.Options, "strict"),
        (ipu.Options, "show_progress"),
        (popgeo.StepOptions, "floating_point_exceptions"),
        (SchNet, "dipole"),
        (lambda **kwargs: popgeo.FixedSizeBatchSampler([3], **kwargs), "drop_last"),
        (lambda **kwargs: popgeo.FixedSizeDataLoader([Data(x=torch.ones(1, 1))], **kwargs), "shuffle"),
    ],
)
def test_a_switch_that_is_a_word_is_refused(call, switch: str):
    with pytest.raises(ValueError, match=rf"{switch} is 'no'; it must be True or False"):
        call(**{switch: "no"})


def test_help_shows_the_arguments_and_what_is_called_is_as_before():
    assert "num_interactions" in inspect.signature(SchNet).parameters
    assert "optimizer" in inspect.signature(popgeo.compile_step).parameters
    assert ipu.Options(device_iterations=2) == ipu.Options(device_iterations=2)
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        popgeo.compile_step()
    assert SchNet(8, 8, 1)(torch.ones(2, dtype=torch.long), torch.rand(2, 3), torch.zeros(2, dtype=torch.long)).shape
