"""Optimizers for CUDA graphs: their settings, the changes that they accept, and the rates on the device."""

import sys

import pytest
import torch
from torch import nn, optim

from popgeo.engine.optimizer.capturable import CapturableOptimizer, check_capturable

DEVICE = torch.device("cpu")
META = torch.device("meta")


@pytest.fixture(autouse=True)
def _processors_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch accept capturable=True on the CPU, as on CUDA devices."""
    for name in ("adam", "rmsprop"):
        served = lambda *given, **named: ["cpu"]  # noqa: E731
        monkeypatch.setattr(sys.modules[f"torch.optim.{name}"], "_get_capturable_supported_devices", served)


def weights() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    for p in made:
        p.grad = torch.ones_like(p)
    return made


def grouped(kind: type[optim.Optimizer] = optim.Adam, **settings) -> optim.Optimizer:
    first, second = weights()
    return kind([{"params": [first], "lr": 0.5}, {"params": [second], "lr": 0.25}], **settings)


def test_groups_are_made_capturable_each_in_its_way():
    for kind, settings, expected in (
        (optim.Adam, {}, {"capturable": True, "foreach": True, "fused": None}),
        (optim.Adam, {"fused": True}, {"capturable": True, "foreach": False, "fused": True}),
        (optim.SGD, {}, {"fused": True, "foreach": False}),
    ):
        optimizer = grouped(kind, **settings)
        CapturableOptimizer(optimizer, DEVICE)
        for group in optimizer.param_groups:
            assert {key: group[key] for key in expected} == expected


def test_state_moves_to_the_device_and_the_rest_of_it_stays():
    optimizer = grouped()
    optimizer.step()
    (parameter,) = optimizer.param_groups[0]["params"]
    optimizer.state[parameter]["note"] = "kept"
    held = optimizer.state[parameter]["exp_avg"]
    CapturableOptimizer(optimizer, DEVICE)
    assert optimizer.state[parameter]["exp_avg"] is held
    CapturableOptimizer(optimizer, META)
    assert {part.device.type for state in optimizer.state.values() for part in state.values() if part != "kept"} == {
        "meta"
    }  # fmt: skip
    assert optimizer.state[parameter]["note"] == "kept"


def test_a_step_reads_the_rates_that_were_written_last_and_the_groups_keep_theirs():
    mine, theirs = grouped(optim.SGD), grouped(optim.SGD)
    captured = CapturableOptimizer(mine, DEVICE)
    captured.step()  # the rates on the device are still 0
    assert all((p == 1).all() for group in mine.param_groups for p in group["params"])
    for rates in ((0.5, 0.25), (0.125, 0.25), (torch.tensor(0.75), 1.0), (torch.tensor(0.5), 2.0)):
        for optimizer in (mine, theirs):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        captured.write_rates()
        captured.step()
        theirs.step()
        assert [group["lr"] for group in mine.param_groups] == list(rates)
        for one, other in zip(mine.param_groups, theirs.param_groups, strict=True):
            assert torch.equal(one["params"][0], other["params"][0])


def test_rates_stay_in_the_groups_when_a_step_fails():
    class Failing(optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("broken")

    optimizer = grouped(optim.SGD)
    captured = CapturableOptimizer(optimizer, DEVICE)
    optimizer.__class__ = Failing
    with pytest.raises(RuntimeError, match="broken"):
        captured.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]


def test_only_rates_that_change_are_written():
    optimizer = grouped(optim.SGD)
    captured = CapturableOptimizer(optimizer, DEVICE)
    captured.write_rates()
    assert [float(rate) for rate in captured._rates] == [0.5, 0.25]
    for rate in captured._rates:
        rate.fill_(9.0)
    optimizer.param_groups[1]["lr"] = 0.125
    captured.write_rates()
    assert [float(rate) for rate in captured._rates] == [9.0, 0.125]


def test_rates_of_a_function_count_updates():
    optimizer = grouped(optim.SGD)
    captured = CapturableOptimizer(optimizer, DEVICE, lambda number: 0.5**number)
    assert captured.num_updates == 0
    for number in range(3):
        captured.write_rates()
        assert [float(rate) for rate in captured._rates] == [0.5**number] * 2
        assert [group["lr"] for group in optimizer.param_groups] == [0.5**number] * 2
        optimizer._opt_called = False
        captured.count()
        assert captured.num_updates == number + 1
        assert optimizer._opt_called


def test_another_state_is_noticed_and_other_settings_are_refused():
    optimizer = grouped(optim.SGD, momentum=0.5)
    captured = CapturableOptimizer(optimizer, DEVICE)
    assert captured.is_as_prepared
    for name in ("lr", "initial_lr"):
        optimizer.param_groups[1][name] = 0.75
    assert captured.is_as_prepared
    optimizer.param_groups[1]["momentum"] = 0.25
    with pytest.raises(ValueError, match=r"momentum of parameter group 1 was 0\.5 when .* is now 0\.25; only lr may"):
        _ = captured.is_as_prepared
    captured.prepare()
    assert captured.is_as_prepared
    optimizer.param_groups[0]["own"] = 1
    with pytest.raises(ValueError, match=r"own of parameter group 0 was None when .* is now 1"):
        _ = captured.is_as_prepared
    captured.prepare()
    optimizer.load_state_dict(optimizer.state_dict())
    assert not captured.is_as_prepared
    captured.prepare()
    assert captured.is_as_prepared
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match=r"parameter groups changed after the step was captured; call reset\(\)"):
        _ = captured.is_as_prepared


def test_what_cannot_be_captured_is_refused():
    class Other(optim.SGD):
        pass

    for kind in (optim.SGD, optim.Adam, optim.RMSprop, optim.ASGD, optim.Rprop):
        check_capturable(grouped(kind))
    for kind in (optim.Adagrad, Other):
        with pytest.raises(ValueError, match=f"{kind.__name__} keeps numbers of its update on the host"):
            CapturableOptimizer(grouped(kind), DEVICE)
    partly = grouped(optim.Adam)
    del partly.param_groups[1]["capturable"]
    with pytest.raises(ValueError, match="Adam keeps numbers of its update on the host"):
        check_capturable(partly)
    with pytest.raises(ValueError, match="The optimizer has differentiable=True, which a CUDA graph cannot hold"):
        check_capturable(grouped(optim.Adam, differentiable=True))
