"""PopTorch's errors are caught as PopTorch's, as RuntimeErrors and as ValueErrors, and carry their message."""

import logging
import pickle

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch


@pytest.mark.parametrize("kind", [poptorch.Error, RuntimeError, ValueError])
def test_an_error_is_caught_by_each_of_its_names(kind):
    executor = poptorch.inferenceModel(nn.ReLU())
    with pytest.raises(kind, match="Model has not been compiled or has been destroyed"):
        executor.copyWeightsToHost()


def test_an_error_carries_its_message_and_survives_pickling():
    error = pickle.loads(pickle.dumps(poptorch.RecoverableError("lost")))
    assert (error.message, str(error)) == ("lost", "'poptorch_py_error': lost")
    assert error.recovery_action == "FULL_RESET"
    assert isinstance(error, poptorch.Error)
    assert not isinstance(error, poptorch.UnrecoverableError)


def test_what_popgeo_refuses_is_poptorchs_error_with_the_reason_behind_it():
    class Grows(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(Grows())(torch.ones(3))
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value.__cause__) == caught.value.message


def test_the_models_own_error_stays_what_it_is():
    class Stops(nn.Module):
        def forward(self, x):
            raise ValueError("no such class")

    with pytest.raises(ValueError, match="no such class") as caught:
        poptorch.inferenceModel(Stops())(torch.ones(3))
    assert type(caught.value) is ValueError


def test_nan_is_poptorchs_error_where_it_is_looked_for():
    class Divide(nn.Module):
        def forward(self, x, y):
            return x / y

    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    zeros = torch.zeros(2)
    with pytest.raises(poptorch.Error, match="NaN"):
        poptorch.inferenceModel(Divide(), options)(zeros, zeros)
    assert poptorch.inferenceModel(Divide())(zeros, zeros).isnan().all()


def test_what_needs_graphcores_libraries_is_refused_with_the_reason():
    with pytest.raises(poptorch.Error, match=r"custom_op\('Cube', 'custom.ops'\) cannot run.*C\+\+"):
        poptorch.custom_op([torch.ones(1)], "Cube", "custom.ops", 1, example_outputs=[torch.ones(1)])
    with pytest.raises(poptorch.Error, match="ctc_beam_search_decoder cannot run"):
        poptorch.ctc_beam_search_decoder(torch.ones(1, 1, 1), torch.ones(1))


def test_there_is_no_machine():
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.isRunningOnIpu() is False
    with pytest.raises(AssertionError, match="No IPU hardware available"):
        poptorch.ipuHardwareVersion()


def test_log_levels_have_names_and_numbers():
    log = logging.getLogger("poptorch")
    before = log.level
    try:
        for level, meant in (("DEBUG", logging.DEBUG), (3, logging.WARNING), ("ERR", logging.ERROR), (0, 5)):
            poptorch.setLogLevel(level)
            assert log.level == meant
        with pytest.raises(
            ValueError, match=r"Unknown log level: wibble\. Valid values are DEBUG, ERR, INFO, OFF, TRAC"
        ):
            poptorch.setLogLevel("wibble")
        with pytest.raises(ValueError, match="Invalid log level integer 5"):
            poptorch.setLogLevel(5)
    finally:
        log.setLevel(before)


def test_profiling_changes_nothing():
    channel = poptorch.profiling.Channel("run")
    data = [1, 2]
    with channel.tracepoint("load"):
        assert channel.instrument(data, "__getitem__") is data
