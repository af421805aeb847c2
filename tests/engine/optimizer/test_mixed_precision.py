"""float16 weights: updates in float32, master weights and stochastic rounding, compared with plain loops."""

import copy
import functools
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn, optim

import popgeo
from popgeo.engine.optimizer.precision import rounding_counter
from popgeo.engine.optimizer.update import Update
from popgeo.ipu import Options, TileExact, estimate, training_model
from popgeo.ops import round_stochastic

OPTIMIZERS = {
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "adam": functools.partial(optim.Adam, lr=1e-2),
    "adamw": functools.partial(optim.AdamW, lr=1e-2),
    "adagrad": functools.partial(optim.Adagrad, lr=1e-2),
    "rmsprop": functools.partial(optim.RMSprop, lr=1e-3, momentum=0.5),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.second(self.first(x).tanh()) - y).float().square().mean()


class Weight(nn.Module):
    """Model whose gradient is the input, independent of the weight."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def make_pair(dtype: torch.dtype = torch.float16) -> tuple[Net, Net]:
    torch.manual_seed(0)
    model = Net().to(dtype)
    return model, copy.deepcopy(model)


def batch(seed: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=generator).to(dtype), torch.randn(8, 1, generator=generator).to(dtype)


def assert_same(model: nn.Module, reference: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def reference_loop(model: Net, make, steps: int, *, master: bool, joined: int = 1) -> optim.Optimizer:
    """Train in eager torch: step a float32 copy of all weights, and round it to the model's weights."""
    wide = nn.Parameter(flat(model.parameters()))
    optimizer = make([wide])
    for step in range(steps):
        wide.grad = torch.zeros_like(wide)
        for part in range(joined):
            model.zero_grad()
            model(*batch(step * joined + part)).backward()
            wide.grad += flat(p.grad for p in model.parameters())
        wide.grad /= joined
        if not master:
            wide.data.copy_(flat(model.parameters()))
        optimizer.step()
        nn.utils.vector_to_parameters(wide.detach().half(), model.parameters())
    return optimizer


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten().float() for tensor in tensors])


@pytest.mark.parametrize("name", ["momentum", "adagrad", "rmsprop"])
def test_by_default_all_of_it_is_in_half_as_in_eager_torch(name: str):
    model, reference = make_pair()
    optimizer = OPTIMIZERS[name](reference.parameters())
    mine = OPTIMIZERS[name](model.parameters())
    training = training_model(model, optimizer=mine)
    for step in range(4):
        training(*batch(step))
        optimizer.zero_grad()
        reference(*batch(step)).backward()
        optimizer.step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        # In a joined tensor, torch's vector kernels cover other elements, and vectors round once less.
        torch.testing.assert_close(p, q, rtol=2**-10, atol=2**-12)
    states = [part for state in mine.state.values() for key, part in state.items() if key != "step"]
    assert {part.dtype for part in states} == {torch.float16}


@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_in_float32_gives_a_plain_loop_s_weights(name: str, master: bool):
    model, reference = make_pair()
    mine = OPTIMIZERS[name](model.parameters())
    options = Options(optimizer_state_dtype=torch.float32, master_weights=master, device_iterations=2)
    training = training_model(model, options, mine)
    for call in range(3):
        x, y = (torch.cat(parts) for parts in zip(batch(2 * call), batch(2 * call + 1), strict=True))
        training(x, y)
    theirs = reference_loop(reference, OPTIMIZERS[name], 6, master=master)
    assert training.report.update_captured
    # The executor's chains sometimes round float32 to the other neighboring number than torch.
    ours, theirs_, spacing = flat(model.parameters()), flat(reference.parameters()), 2**-10
    torch.testing.assert_close(ours, theirs_, rtol=spacing, atol=2**-24)
    assert float((ours == theirs_).float().mean()) > 0.9
    (wide,) = theirs.param_groups[0]["params"]
    for key, part in (*theirs.state[wide].items(), *([("master_weights", wide)] if master else ())):
        if key != "step":
            found = flat(mine.state[p][key] for p in model.parameters())
            torch.testing.assert_close(found, part, rtol=1e-4, atol=1e-6)
    assert all(("master_weights" in state) is master for state in mine.state.values())


def test_accumulated_gradients_are_joined_in_float32_and_the_plain_door_does_the_same():
    model, reference = make_pair()
    choices = {"optimizer_state_dtype": torch.float32, "gradient_accumulation": 3}
    other = copy.deepcopy(model)
    training = training_model(model, Options(**choices), OPTIMIZERS["adam"](model.parameters()))
    plain = popgeo.compile_step(
        other, OPTIMIZERS["adam"](other.parameters()), options=popgeo.StepOptions(**choices)
    )  # fmt: skip
    for call in range(2):
        parts = [batch(3 * call + part) for part in range(3)]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        training(x, y)
        plain(x, y)
    reference_loop(reference, OPTIMIZERS["adam"], 2, master=False, joined=3)
    assert_same(model, reference)
    assert_same(other, reference)


def test_gradients_may_be_joined_in_half():
    """In float16, 2,048 plus 1 is 2,048, so a hundred ones are lost."""
    found = {}
    for dtype in (torch.float16, torch.float32):
        model = Weight(torch.zeros(1, dtype=torch.float16))
        options = Options(
            gradient_accumulation=101, reduction="sum", accumulation_dtype=dtype, optimizer_state_dtype=torch.float32
        )
        training = training_model(model, options, optim.SGD(model.parameters(), lr=1.0))
        training(torch.tensor([2048.0] + [1.0] * 100).half().view(-1, 1))
        found[dtype] = model.weight.item()
    assert found == {torch.float16: -2048.0, torch.float32: -2148.0}


def test_state_may_be_kept_in_half_while_the_update_is_worked_out_in_float32():
    """In float16 Adam's eps of 1e-8 is 0, so torch's own update of half weights divides by 0."""
    model, plain = make_pair()
    mine = OPTIMIZERS["adam"](model.parameters())
    training = training_model(model, Options(optimizer_state_dtype=torch.float16), mine)
    for step in range(5):
        training(*batch(step))
    assert training.report.update_captured
    moments = [mine.state[p][key] for p in model.parameters() for key in ("exp_avg", "exp_avg_sq")]
    assert {part.dtype for part in moments} == {torch.float16}
    wide = OPTIMIZERS["adam"](plain.parameters())
    reference = training_model(plain, Options(optimizer_state_dtype=torch.float32), wide)
    for step in range(5):
        reference(*batch(step))
    for mine_, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine_, theirs, rtol=0.02, atol=2e-3)


def test_a_thousand_small_updates_move_weights_where_nearest_rounding_moves_them_not_at_all():
    moved = {}
    for rounds in (False, True):
        model = Weight(torch.ones(64, dtype=torch.float16))
        options = Options(
            device_iterations=1000,
            num_threads=1,
            stochastic_rounding=rounds,
            optimizer_state_dtype=torch.float32,
            random_seed=3,
        )
        training = training_model(model, options, optim.SGD(model.parameters(), lr=1e-4))
        ones = torch.ones(64_000, dtype=torch.float16)
        training(ones)
        moved[rounds] = 1 - model.weight.detach().float()
    assert moved[False].abs().max() == 0
    # A step is 0.2 of the spacing below 1: a deviation of 0.006 over a thousand of them, of 0.0008 in the mean.
    assert abs(float(moved[True].mean()) - 0.1) < 0.004
    assert float((moved[True] - 0.1).abs().max()) < 0.03
    assert moved[True].unique().numel() > 8  # each weight has its own random numbers


def rounded(threads: int | None = None, seed: int = 5, **choices) -> tuple[Tensor, nn.Module]:
    torch.manual_seed(0)
    model = Weight(torch.randn(40_000).half())
    options = Options(stochastic_rounding=True, random_seed=seed, num_threads=threads, **choices)
    training = training_model(model, options, optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    for step in range(3):
        training(torch.randn(40_000, generator=torch.Generator().manual_seed(step)).half())
    return model.weight.detach().clone(), training


def test_rounding_is_seeded_and_the_same_for_any_number_of_threads():
    one, _ = rounded(1)
    assert torch.equal(one, rounded(2)[0])
    assert not torch.equal(one, rounded(1, seed=6)[0])


def test_rounding_is_that_of_the_op_with_the_update_s_own_counter():
    found, _ = rounded(1)
    torch.manual_seed(0)
    weight, velocity = torch.randn(40_000).half(), torch.zeros(40_000)
    for step in range(3):
        velocity = 0.9 * velocity + torch.randn(40_000, generator=torch.Generator().manual_seed(step)).half().float()
        counter = torch.tensor(rounding_counter(5, 0, step + 1))
        weight = round_stochastic(weight.float().sub_(velocity, alpha=1e-3), counter)
    assert float((found == weight).float().mean()) > 0.999  # torch's update multiplies and adds in a different order


def test_state_of_half_is_rounded_at_random_too():
    _, training = rounded(1, optimizer_state_dtype=torch.float16)
    assert training.report.update_captured
    velocity = training.update.optimizer.state[training.model.weight]["momentum_buffer"]
    assert velocity.dtype is torch.float16
    assert set(training.update.optimizer.state[training.model.weight]) == {"momentum_buffer"}  # no counter of rounding


CHOICES = {
    "state": {"optimizer_state_dtype": torch.float32},
    "half state": {"optimizer_state_dtype": torch.float16, "stochastic_rounding": True},
    "master": {"master_weights": True},
    "rounding": {"stochastic_rounding": True},
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("early", [False, True])
def test_a_run_goes_on_from_its_checkpoint_to_the_last_bit(name: str, early: bool, tmp_path):
    def make() -> popgeo.ipu.CompiledStep:
        model, _ = make_pair()
        return training_model(
            model, Options(random_seed=1, **CHOICES[name]), OPTIMIZERS["adam"](model.parameters())
        )  # fmt: skip

    first, second = make(), make()
    for step in range(6):
        if step == 3:
            first.save(tmp_path / "run")
        first(*batch(step))
    if not early:
        second(*batch(9))
    second.load(tmp_path / "run")
    for step in range(3, 6):
        second(*batch(step))
    assert_same(first.model, second.model)


@pytest.mark.parametrize("name", ["state", "master"])
def test_torch_s_own_state_dict_is_loaded_in_the_types_that_it_has(name: str):
    model, other = make_pair()
    mine, theirs = OPTIMIZERS["adam"](model.parameters()), OPTIMIZERS["adam"](other.parameters())
    training = training_model(model, Options(**CHOICES[name]), mine)
    going_on = training_model(other, Options(**CHOICES[name]), theirs)
    for step in range(3):
        training(*batch(step))
    going_on.compile(*batch(0))
    going_on(*batch(7))
    going_on.load_state_dict(copy.deepcopy(training.state_dict()))
    theirs.load_state_dict(copy.deepcopy(mine.state_dict()))
    for step in range(3, 5):
        training(*batch(step))
        going_on(*batch(step))
    assert_same(model, other)


def test_state_that_torch_has_rounded_before_is_told_of():
    model, other = make_pair()
    mine, theirs = OPTIMIZERS["adam"](model.parameters()), OPTIMIZERS["adam"](other.parameters())
    training_model(model, Options(**CHOICES["state"]), mine)(*batch(0))
    theirs.load_state_dict(mine.state_dict())
    with pytest.warns(UserWarning, match="exp_avg, exp_avg_sq came in a narrow type"):
        training_model(other, Options(**CHOICES["state"]), theirs)(*batch(1))
    assert theirs.state[other.first.weight]["exp_avg"].dtype is torch.float32


def test_weights_that_are_changed_from_outside_win_over_master_weights():
    model = Weight(torch.full((4,), 1.0, dtype=torch.float16))
    training = training_model(model, Options(master_weights=True), optim.SGD(model.parameters(), lr=1e-4))
    ones = torch.ones(4, dtype=torch.float16)
    training(ones)
    with torch.no_grad():
        model.weight[1] = 3.0
    training(ones)
    master = training.update.optimizer.state[model.weight]["master_weights"]
    torch.testing.assert_close(master, torch.tensor([1 - 2e-4, 3 - 1e-4, 1 - 2e-4, 1 - 2e-4]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", CHOICES)
def test_tiles_do_the_same(name: str):
    model, _ = make_pair()
    options = Options(random_seed=2, gradient_accumulation=2, device_iterations=2, **CHOICES[name])
    training = training_model(model, options, OPTIMIZERS["momentum"](model.parameters()))
    call = [torch.cat([batch(n)[part] for n in range(4)]) for part in (0, 1)]
    training(*call)
    exact = TileExact(training)
    # Sums of float16 in a different order differ by one or two bits of eleven.
    torch.testing.assert_close(exact(*call), training(*call), rtol=3e-3, atol=0)
    for key, mine in exact.state_dict().items():
        torch.testing.assert_close(mine, model.state_dict()[key], rtol=2e-3, atol=1e-3)


def test_the_report_counts_bytes_and_casts_of_the_chosen_types():
    kept, casts = {}, {}
    for name, choices in {"half": {}, **CHOICES}.items():
        model, _ = make_pair()
        report = estimate(model, batch(0), Options(**choices), OPTIMIZERS["adam"](model.parameters()))
        kept[name] = report.state_bytes
        casts[name] = [c.target for c in report.costs if c.phase == "update" and c.target.startswith("popgeo")]
    weights = sum(p.numel() for p in Net().parameters())
    # Weights and gradients in half; two moments each in half, then in float32 with gradients in float32.
    assert kept["half"] - weights * 2 * 4 < 16
    assert kept["state"] - weights * (2 + 4 + 8) < 16
    assert kept["half state"] - weights * (2 + 4 + 4) < 32
    assert kept["master"] - weights * (2 + 4 + 12) < 16
    assert casts["rounding"] == ["popgeo.round_stochastic.default"]
    assert casts["half state"] == ["popgeo.round_stochastic.default"] * 3
    assert not casts["half"] + casts["state"] + casts["master"]


def test_float32_weights_are_not_touched_by_any_of_it():
    found = []
    for choices in ({}, {"stochastic_rounding": True}, {"master_weights": True, "accumulation_dtype": torch.float16}):
        model, _ = make_pair(torch.float32)
        training = training_model(model, Options(**choices), OPTIMIZERS["adam"](model.parameters()))
        for step in range(3):
            training(*batch(step, torch.float32))
        found.append(model)
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


@pytest.mark.parametrize("kind", [Options, popgeo.StepOptions])
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"optimizer_state_dtype": torch.int8}, r"optimizer_state_dtype is torch.int8; it must be torch.float32"),
        ({"accumulation_dtype": "float32"}, r"accumulation_dtype is 'float32'; it must be"),
        ({"master_weights": True, "stochastic_rounding": True}, "choose one"),
        ({"stochastic_rounding": 1}, "stochastic_rounding is 1; it must be True or False"),
    ],
)
def test_choices_that_are_none_are_refused(kind: type, choices: dict, message: str):
    with pytest.raises(ValueError, match=message):
        kind(**choices)


def test_gradients_of_half_are_not_joined_in_another_half():
    model, _ = make_pair()
    training = training_model(model, Options(accumulation_dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"choose torch\.float32 or the type of"):
        training(*batch(0))


def test_parts_of_the_weights_round_by_random_numbers_of_their_own():
    rounded = []
    for number in (0, 1):
        weights = {"many": nn.Parameter(torch.ones(400).half()), "one": nn.Parameter(torch.ones(()).half())}
        options = Options(stochastic_rounding=True, shard_optimizer_state=True, random_seed=3)
        update = Update(optim.SGD(weights.values(), lr=1e-4), weights, options, part=(number, 2))
        update.follow_memory()
        for _ in range(8):
            for gradient in update.gradients.values():
                gradient.fill_(1.0)
            update.accumulate(first=True)
            update.apply()
        part = weights["many"].detach().view(2, 200)[number]
        assert 0 < (part < 1).sum() < 200  # about 8 x 1e-4 / 2^-11 of them
        rounded.append((part, weights["one"].detach()))
    assert not torch.equal(rounded[0][0], rounded[1][0])
    assert torch.equal(rounded[0][1], rounded[1][1])  # both processes hold this weight
