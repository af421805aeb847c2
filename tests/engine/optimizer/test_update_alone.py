"""Updates without a model: accumulated gradients, rates, overflows, replaced optimizers, errors."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn, optim

from popgeo import LossScaling, Options
from popgeo.engine.optimizer.update import Update
from tests.support.updates import KINDS, SHAPES, assert_same, assert_same_state, feed, gradients, make, step, weights


@pytest.mark.parametrize("kind", KINDS)
def test_it_does_what_the_optimizer_does_with_a_rate_that_changes_and_goes_on_from_its_state(kind: str):
    update, mine = make(kind)
    theirs = weights()
    optimizer = KINDS[kind](theirs.values())
    assert update.num_updates == 0
    for number in range(6):
        for one in (update.optimizer, optimizer):
            one.param_groups[0]["lr"] = 0.1 / (1 + number // 2)
        feed(update, gradients(number))
        update.apply()
        step(optimizer, theirs, gradients(number))
    assert update.num_updates == 6
    assert update.is_captured is (kind not in ("adafactor", "foreach"))
    assert_same(mine, theirs)
    assert_same_state(update.optimizer, optimizer)
    # A second optimizer with the same state and parameters replaces the first.
    following = KINDS[kind](mine.values())
    following.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    update.set_optimizer(following)
    feed(update, gradients(7))
    update.apply()
    step(optimizer, theirs, gradients(7))
    assert_same(mine, theirs)
    assert_same_state(following, optimizer)


def test_gradients_of_micro_batches_are_added_up_all_at_once_or_by_name():
    for names in (None, list(SHAPES), ["line", "scalar"]):
        update, _ = make("sgd", gradient_accumulation=3)
        total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
        feed(update, gradients(9))  # left from the last update
        for part in range(3):
            for name, place in update.gradients.items():
                place.copy_(gradients(part)[name])
                total[name] += gradients(part)[name]
            update.accumulate(first=part == 0, names=names)
        flat = torch.cat([total[name].flatten() for name in SHAPES if name != "scalar"])
        if names != ["line", "scalar"]:
            torch.testing.assert_close(torch.cat([one.flatten() for one in update.totals()[:1]]), flat)
        else:
            torch.testing.assert_close(update.totals()[0][6:11], total["line"])
            torch.testing.assert_close(update.totals()[0][:6], gradients(9)["rows"].flatten())
        torch.testing.assert_close(update.totals()[1], total["scalar"])


def test_gradients_of_replicas_are_added_up():
    update, _ = make("sgd", replication_factor=2)
    for replica in range(2):
        feed(update, gradients(replica), first=replica == 0)
    torch.testing.assert_close(update.totals()[1], gradients(0)["scalar"] + gradients(1)["scalar"])


def test_without_several_micro_batches_the_gradient_is_the_sum():
    update, _ = make("sgd")
    for name, place in update.gradients.items():
        place.copy_(gradients(0)[name])
    update.accumulate(first=False, names=list(SHAPES))
    update.accumulate(first=False)
    flat = torch.cat([one.flatten() for name, one in gradients(0).items() if name != "scalar"])
    torch.testing.assert_close(update.totals()[0], flat)
    assert update.totals()[0].untyped_storage().data_ptr() == update.gradients["line"].untyped_storage().data_ptr()


@pytest.mark.parametrize(("reduction", "joined"), [("mean", 2), ("sum", 1)])
def test_gradients_are_divided_then_clipped_over_all_parameters(reduction: str, joined: int):
    choices = {"gradient_accumulation": 2, "loss_scaling": 8.0, "max_grad_norm": 0.5, "reduction": reduction}
    update, mine = make("momentum", **choices)
    theirs = weights()
    optimizer = KINDS["momentum"](theirs.values())
    for number in range(3):
        for part in range(2):
            feed(update, gradients(2 * number + part), first=part == 0)
        update.apply()
        both = [gradients(2 * number), gradients(2 * number + 1)]
        for name, parameter in theirs.items():
            parameter.grad = (both[0][name] + both[1][name]) / 8 / joined
        nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        optimizer.step()
    assert_same(mine, theirs)


def test_a_rate_may_follow_the_number_of_updates():
    update, mine = make("sgd", rate=lambda number: 2.0**-number)
    theirs = weights()
    optimizer = KINDS["sgd"](theirs.values())
    for number in range(3):
        feed(update, gradients(number))
        update.apply()
        assert update.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0].update(lr=2.0**-number) or 1
        assert update.optimizer.param_groups[0]["lr"] == 2.0**-number
        step(optimizer, theirs, gradients(number))
    assert_same(mine, theirs)
    for number in (0, 5):
        settings = update.settings(number)
        assert [one["lr"] for one in settings] == [2.0**-number] * 2
        assert "params" not in settings[0]
        assert settings[0]["momentum"] == 0
    assert make("sgd")[0].settings(5)[1]["lr"] == 0.1


def test_an_overflow_anywhere_leaves_the_update_out():
    rule = LossScaling(initial=4.0, growth_interval=2)
    update, mine = make("adam", loss_scaling=rule)
    theirs = weights()
    optimizer = KINDS["adam"](theirs.values())
    told = []
    fates = {1: "inf", 2: "nan", 4: "elsewhere"}

    def add_up(tensors: list[Tensor]) -> None:
        """Leave gradients unchanged, and add an overflow of another process."""
        if len(tensors) == 1:
            told.append(tensors[0].clone())
            if fates.get(number) == "elsewhere":
                tensors[0].add_(1)

    replicas = SimpleNamespace(add_up=add_up, hand_on=lambda tensors: None)

    applied, scales = 0, []
    for number in range(8):
        given = {name: one * update.scale.value for name, one in gradients(number).items()}
        if fates.get(number) in ("inf", "nan"):
            given["scalar"] = torch.tensor(float(fates[number]))
        feed(update, given)
        update.optimizer._opt_called = False
        update.apply(replicas)
        assert update.optimizer._opt_called
        if number not in fates:
            step(optimizer, theirs, gradients(number))
            applied += 1
        assert update.num_updates == applied
        assert_same(mine, theirs)
        scales.append(update.scale.value)
    assert [float(one) for one in told] == [0, 1, 1, 0, 0, 0, 0, 0]
    assert scales == [4, 2, 1, 1, 0.5, 0.5, 1, 1]
    assert (update.scale.skipped, update.scale.updates) == (3, 8)
    assert make("sgd")[0].scale is None


def test_weights_that_finite_gradients_break_are_named():
    update, held = make("sgd", torch.float32, floating_point_exceptions=True)
    given = gradients(0, torch.float32)
    feed(update, given)
    update.apply()
    given["one"], given["line"] = torch.full((1,), 3e38), torch.full((5,), 3e38)
    update.optimizer.param_groups[0]["lr"] = 10.0
    feed(update, given)
    with pytest.raises(FloatingPointError, match=r"^SGD's update of step 1 gave NaN .* finite gradients: line, one$"):
        update.apply()
    # No check: the gradients were not finite before the update, or the option is off.
    broken, _ = make("sgd", torch.float32, floating_point_exceptions=True)
    feed(broken, given | {"rows": torch.full((3, 2), torch.inf), "scalar": torch.zeros(())})
    broken.apply()
    unasked, held = make("sgd", torch.float32)
    unasked.optimizer.param_groups[0]["lr"] = 10.0
    feed(unasked, given)
    unasked.apply()
    assert held["one"].isinf()


def test_what_cannot_be_updated_is_refused():
    held = weights()
    with pytest.raises(ValueError, match="holds no parameter that the loss depends on"):
        Update(optim.SGD(held.values()), {}, Options())
    with pytest.raises(ValueError, match="LBFGS evaluates the model several times"):
        Update(optim.LBFGS(held.values()), held, Options())
    with pytest.raises(ValueError, match=r"shard_optimizer_state cuts .* Adafactor looks at whole rows"):
        make("adafactor", shard_optimizer_state=True)
    assert make("adafactor")[0].is_captured is False
    with pytest.raises(ValueError, match=r"Adafactor looks at whole rows .* one of SGD, Adam"):
        make("adafactor")[0].worker()
    assert make("adam", shard_optimizer_state=True)[0].is_captured is None


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adafactor"])
def test_gradients_joined_in_float32_update_half_weights_in_float32(kind: str):
    update, held = make(kind, torch.float16, accumulation_dtype=torch.float32)
    assert [total.dtype for total in update.totals()] == [torch.float32] * len(update.totals())
    wide = {name: nn.Parameter(one.detach().float()) for name, one in weights(torch.float16).items()}
    optimizer = KINDS[kind](wide.values())
    for number in range(3):
        given = gradients(number, torch.float16)
        feed(update, given)
        update.apply()
        step(optimizer, wide, {name: one.float() for name, one in given.items()})
        for one in wide.values():
            one.data = one.detach().half().float()
    for name, one in wide.items():
        assert torch.equal(held[name], one.half())


def test_weights_changed_from_outside_win_over_master_weights():
    update, held = make("sgd", torch.float16, master_weights=True)
    for number in range(2):
        if number:
            held["line"].data.fill_(9.0)
        feed(update, {name: torch.zeros(shape).half() for name, shape in SHAPES.items()})
        update.apply()
    assert held["line"].tolist() == [9.0] * 5


def test_another_optimizer_must_be_of_the_same_kind_over_the_same_groups():
    update, held = make("adam")
    with pytest.raises(ValueError, match=r"compiled with Adam, not SGD; wrap it again"):
        update.set_optimizer(KINDS["sgd"](held.values()))
    with pytest.raises(ValueError, match=r"compiled with Adam, not AdamW"):
        update.set_optimizer(optim.AdamW(held.values()))
    for groups in ([{"params": [p]} for p in held.values()], list(held.values())[1:]):
        with pytest.raises(ValueError, match="other parameters or groups than the model was compiled with"):
            update.set_optimizer(optim.Adam(groups))


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, new: optimizer.add_param_group({"params": [new]}),
        lambda optimizer, new: optimizer.param_groups[0]["params"].append(new),
    ],
)
def test_groups_that_change_afterwards_are_refused(change):
    update, _ = make("sgd")
    feed(update, gradients(0))
    update.apply()
    change(update.optimizer, nn.Parameter(torch.ones(2)))
    with pytest.raises(ValueError, match=r"other parameters or groups .* call reset\(\) first"):
        update.apply()


class ByList(optim.Optimizer):
    """Optimizer that keeps its rate in a list, which the user may edit."""

    elementwise = True

    def __init__(self, params, rates: list[float]) -> None:
        super().__init__(params, {"rates": rates})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["rates"][0])


def test_a_setting_that_is_a_list_may_be_written_to():
    mine, theirs = weights(), weights()
    own, optimizer = (ByList(held.values(), rates=[0.1]) for held in (mine, theirs))
    update = Update(own, mine, Options())
    update.follow_memory()
    for number in range(6):
        for one in (own, optimizer):
            one.param_groups[0]["rates"][0] = 0.1 if number < 4 else 0.02
        feed(update, gradients(number))
        update.apply()
        step(optimizer, theirs, gradients(number))
    assert update.is_captured
    assert_same(mine, theirs)
