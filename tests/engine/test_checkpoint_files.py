"""The content of a checkpoint, its use, and the files that are refused."""

import random

import pytest
import torch
from torch import nn

from popgeo.engine.loss_scaling import LossScaling
from popgeo.engine.replicas import Replicas
from popgeo.engine.resume import load_checkpoint, require_replicas, restore_weights, save_checkpoint
from popgeo.ipu import Options, inference_model, training_model


class Harmful:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return (setattr, (Harmful, "has_run", True))

    has_run = False


def test_nothing_in_a_file_is_run(tmp_path):
    path = tmp_path / "harmful.pt"
    save_checkpoint(path, {"model": Harmful()})
    with pytest.raises(ValueError, match="would be executed"):
        load_checkpoint(path)
    assert not Harmful.has_run


def test_of_what_breaks_the_reader_200_characters_of_the_first_line_are_told(tmp_path, monkeypatch):
    def fail(path, **settings):
        raise RuntimeError("x" * 201 + "\nsecond line")

    save_checkpoint(tmp_path / "step.pt", {"a": 1})
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(ValueError, match=r"torch cannot read it \(x{200}\)"):
        load_checkpoint(tmp_path / "step.pt")


def test_a_checkpoint_is_a_dictionary_that_names_its_format(tmp_path):
    path = tmp_path / "step.pt"
    save_checkpoint(path, {"a": 1})
    assert load_checkpoint(path) == {"format": "popgeo checkpoint 4", "a": 1}
    for content in (torch.ones(2), {"format": "popgeo checkpoint 1", "a": 1}, ["popgeo checkpoint 2"]):
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"is not a checkpoint of popgeo"):
            load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "nothing.pt")


WEIGHTS = {"model": {"weight": torch.arange(5000.0), "bias": torch.ones(3)}, "replicas": [0]}


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    path = tmp_path / "step.pt"
    save_checkpoint(path, WEIGHTS)
    whole = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(whole)), 200):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is not a checkpoint of popgeo.*damaged"):
            load_checkpoint(path)


def test_a_file_that_was_cut_off_is_no_checkpoint(tmp_path):
    path = tmp_path / "step.pt"
    save_checkpoint(path, WEIGHTS)
    whole = path.read_bytes()
    for size in (0, 1, 2, 22, 100, len(whole) // 2, len(whole) - 200, len(whole) - 78, len(whole) - 64, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"is not a checkpoint of popgeo.*damaged"):
            load_checkpoint(path)


def test_a_checkpoint_from_before_there_were_checksums_is_read_and_flipped_bits_of_its_tensors_are_found(tmp_path):
    path = tmp_path / "step.pt"
    torch.save({"format": "popgeo checkpoint 2", **WEIGHTS}, path)
    assert torch.equal(load_checkpoint(path)["model"]["weight"], torch.arange(5000.0))
    whole = path.read_bytes()
    place = whole.index(torch.arange(5000.0).numpy().tobytes())
    path.write_bytes(whole[: place + 40] + b"\xff" + whole[place + 41 :])
    with pytest.raises(ValueError, match=r"is not a checkpoint of popgeo.*damaged"):
        load_checkpoint(path)


def test_torch_itself_can_read_a_checkpoint(tmp_path):
    save_checkpoint(tmp_path / "step.pt", WEIGHTS)
    assert torch.equal(torch.load(tmp_path / "step.pt")["model"]["bias"], torch.ones(3))


STATE = {"weight": torch.ones(2), "calls": torch.ones(())}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"replicas": "0"},
        {"replicas": [0]},
        {"replicas": [0], "model": 7},
        {"replicas": [0], "model": {"weight": 7}},
        {"replicas": [0], "model": STATE},
        {"replicas": [0], "model": STATE, "generators": [7], "buffers": []},
    ],
)
def test_a_checkpoint_with_other_things_in_it_is_refused_as_a_value_error(tmp_path, content):
    save_checkpoint(tmp_path / "step.pt", content)
    step = inference_model(Weighted())
    step(torch.ones(2))
    with pytest.raises(ValueError, match=r"checkpoint|does not fit"):
        step.load(tmp_path / "step.pt")


class Weighted(nn.Module):
    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (self.weight * x).sum() + torch.rand(()) * 0


def test_a_checkpoint_holds_what_its_step_has(tmp_path):
    path, x = tmp_path / "step.pt", torch.ones(2)
    model = Weighted()
    training = training_model(model, Options(loss_scaling="dynamic"), torch.optim.SGD(model.parameters(), lr=0.5))
    for _ in range(3):
        training(x)
    training.save(path)
    content = load_checkpoint(path)
    assert content["model"]["weight"].tolist() == [-0.5, -0.5]
    assert (content["replicas"], content["num_updates"], content["buffers"]) == ([0], 3, [])
    assert set(content) == {
        "format", "model", "buffers", "generators", "replicas",
        "optimizer", "num_updates", "rounding_seed", "loss_scale",
    }  # fmt: skip
    inference = inference_model(Weighted())
    inference(x)
    inference.load(path)  # of which it takes the weights, and leaves what belongs to an optimizer
    assert inference(x).item() == -1.0
    inference.save(path)
    assert set(load_checkpoint(path)) == {"format", "model", "buffers", "generators", "replicas"}
    training.load(path)  # has nothing for the optimizer, which stays as it is
    assert model.weight.tolist() == [-0.5, -0.5]
    training.save(path)
    assert load_checkpoint(path)["num_updates"] == 3


def test_a_checkpoint_without_a_scale_leaves_that_of_the_step(tmp_path):
    path, x = tmp_path / "step.pt", torch.ones(2)
    steps = []
    for scaling in (1.0, "dynamic"):
        model = Weighted()
        steps.append(training_model(model, Options(loss_scaling=scaling), torch.optim.SGD(model.parameters(), lr=0.5)))
        steps[-1](x)
    constant, dynamic = steps
    constant.save(path)
    scale = dynamic.loss_scale.value
    dynamic.load(path)
    assert dynamic.loss_scale.value == scale
    dynamic.save(path)
    constant.load(path)
    assert constant.loss_scale is None


def test_the_count_of_updates_and_the_scale_of_the_loss_go_on(tmp_path):
    path, x = tmp_path / "step.pt", torch.ones(2)
    steps = []
    for _ in range(2):
        model = Weighted()
        options = Options(loss_scaling=LossScaling(initial=8.0, growth_interval=2))
        steps.append(training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.5)))
        steps[-1](x)
    first, second = steps
    for _ in range(2):
        first(x)
    first.save(path)
    second.load(path)
    assert second.loss_scale.value == first.loss_scale.value == 16.0
    second.save(path)
    assert load_checkpoint(path)["num_updates"] == 3


def test_other_weights_are_refused(tmp_path):
    path = tmp_path / "step.pt"
    step = inference_model(Weighted(2))
    step(torch.ones(2))
    step.save(path)
    with pytest.raises(ValueError, match=r"(?s)step\.pt does not fit the model: .*size mismatch"):
        inference_model(Weighted(3)).load(path)


def test_state_that_is_wider_than_its_weights_stays_so():
    model = nn.Linear(1, 1, bias=False).half()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    momentum = torch.tensor([[0.1]])
    saved = optimizer.state_dict() | {"state": {0: {"momentum_buffer": momentum}}}
    restore_weights({"model": {"weight": torch.full((1, 1), 3.0)}, "optimizer": saved}, model, optimizer, "step.pt")
    assert model.weight.item() == 3.0
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], momentum)


def test_replicas_of_another_process_are_refused():
    require_replicas({"replicas": [1, 3]}, Replicas((1, 3), 2))
    for others in ((0, 2), (1,), (3, 1)):
        with pytest.raises(ValueError, match=r"holds replicas \[1, 3\], this process runs"):
            require_replicas({"replicas": [1, 3]}, Replicas(others, 2))


class Totals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total + torch.rand(1)


def test_each_replica_goes_on_with_its_own_buffers_and_random_numbers(tmp_path):
    path, x = tmp_path / "step.pt", torch.tensor([1.0, 20.0])
    first, second = (inference_model(Totals(), Options(replication_factor=2, random_seed=seed)) for seed in (1, 2))
    first(x)
    first.save(path)
    second(torch.tensor([500.0, 600.0]))
    second.load(path)
    made = second(x)
    assert torch.equal(made, first(x))
    assert made.floor().tolist() == [2, 40]


def test_a_state_dict_is_answered_with_the_function_that_loads_it(tmp_path):
    model = Weighted(3)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(
        ValueError, match=r"weights.pt is not a .*, but a state_dict of \d+ tensors. Load it by model.load_state_dict"
    ):
        step.load(tmp_path / "weights.pt")
