"""PopTorch's errors are also RuntimeErrors and ValueErrors, and carry their message."""

import logging
import pickle

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch
from popgeo.compat.account import ACCOUNT


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
        poptorch.custom_op(
            inputs=[torch.ones(1)], name="Cube", domain="custom.ops", domain_version=1, example_outputs=[torch.ones(1)]
        )
    with pytest.raises(poptorch.Error, match="ctc_beam_search_decoder cannot run"):
        poptorch.ctc_beam_search_decoder(
            probs=torch.ones(1, 1, 1), lengths=torch.ones(1), blank=0, beam_width=1, top_paths=1
        )


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


class KeepsTotal(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.register_buffer("total", torch.tensor([2]))
        self.change = change

    def forward(self, x):
        self.change(self, x)
        return x + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda model, x: setattr(model, "total", x),
            r"Buffer total is reassigned within the model .* self\.total\.cop",
        ),
        (lambda model, x: model._buffers.pop("total"), r"Buffer total is removed from the model when calling the forw"),
    ],
    ids=["reassigned", "removed"],
)
def test_a_buffer_that_a_model_puts_away_is_named_in_poptorchs_words(change, words):
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(KeepsTotal(change))(torch.tensor([5.0]))


def test_an_empty_tensor_that_cannot_be_compiled_is_named():
    class Grows(nn.Module):
        def forward(self, x):
            raise TypeError("no such thing")

    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported \(Got shape \[0, 2\]\)"):
        poptorch.inferenceModel(Grows())(torch.zeros(0, 2))
    with pytest.raises(TypeError, match="no such thing"):
        poptorch.inferenceModel(Grows())(torch.zeros(1, 2))


def test_the_log_lists_each_option_where_it_is_asked_to(capsys):
    options = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    options.Training.setAutomaticLossScaling(True)
    options._Popart.set("dotChecks", ["ALL"]).set("engineOptions", {"debug": True})
    poptorch.setLogLevel("DEBUG")
    try:
        poptorch.inferenceModel(nn.ReLU(), options)(torch.zeros(2))
    finally:
        poptorch.setLogLevel("WARN")
    said = capsys.readouterr().err
    for line in (
        "set device_iterations to value 2",
        "set automaticLossScalingSettings.enabled to value true",
        "added ALL to dotChecks",
        "set engineOptions[debug] to true",
        "set runningStatisticsAlwaysFloat to true",
    ):
        assert f"poptorch.Options {line}\n" in said
    poptorch.inferenceModel(nn.ReLU())(torch.zeros(2))
    assert not capsys.readouterr().err


def test_options_of_a_kind_that_none_has_are_refused_when_validated():
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    poptorch.poptorch_core._validateOptions(options.toDict())
    options._Popart.set("dotChecks", torch.empty(1))
    with pytest.raises(RuntimeError, match=r"Unknown value type .* for option dotChecks"):
        poptorch.poptorch_core._validateOptions(options.toDict())


def test_attributes_for_a_compiler_that_is_not_used_change_nothing():
    class Doubles(nn.Module):
        def forward(self, x):
            with poptorch.Attribute(__outline={"layer": "first"}):
                return x * 2

    assert poptorch.inferenceModel(Doubles())(torch.ones(1)).tolist() == [2.0]
    assert ("Attribute(__outline)", "ignored") in [
        (asked, treatment.value) for asked, (treatment, _) in ACCOUNT.items()
    ]
