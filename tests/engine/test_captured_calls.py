"""Calls of a step that is captured as a CUDA graph: results, updates, captures, streams and refusals, by hand."""

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.compiled_step import Backend, CompiledStep
from popgeo.engine.cuda_graph import StaticInputs
from popgeo.engine.step_options import StepOptions
from tests.support.fake_cuda import FakeCuda


class Slope(nn.Module):
    """Sums over rows, and a loss whose gradient is the mean of the argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0), self.weight * x.mean()


def slopes(**options: object) -> tuple[Slope, CompiledStep]:
    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, compile_step(model, optimizer, backend="cuda", options=StepOptions(**options))


JOINED = {
    "all": lambda made: torch.cat([one.reshape(-1) for one in made]),
    "final": lambda made: made[-1],
    "every_n": lambda made: torch.cat([one.reshape(-1) for one in made[2::3]]),
    "sum": sum,
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mode", [None, *JOINED])
def test_each_micro_batch_returns_its_results_and_each_update_joins_three(cuda: FakeCuda, mode, reduction):
    model, step = slopes(
        device_iterations=2,
        gradient_accumulation=3,
        output_mode=mode,
        output_period=3,
        reduction=reduction,
        loss_scaling=8.0,
    )
    weight = 0.0
    for call in range(3):
        x = torch.randn(12, 2, generator=torch.Generator().manual_seed(call), dtype=torch.float64)
        sums, losses = [], []
        for update in x.view(2, 3, 2, 2):
            sums += [micro.sum(0) for micro in update]
            losses += [weight * micro.mean() for micro in update]
            gradients = [float(micro.mean()) for micro in update]
            weight -= sum(gradients) / (3 if reduction == "mean" else 1)
        made = step(x)
        torch.testing.assert_close(made[0], JOINED[mode or "final"](sums))
        torch.testing.assert_close(made[1], JOINED[mode or "final"](losses))
        assert model.weight.item() == pytest.approx(weight)
    assert cuda.graphs[0].replays == 3


def test_each_part_of_a_call_changes_its_own_slice_of_an_argument(cuda: FakeCuda):
    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, kept, x):
            x.mul_(2)
            return (self.weight * kept).sum()

    model = Doubles()
    options = StepOptions(device_iterations=2)
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda", options=options)
    for _ in range(3):
        kept, x = torch.arange(4.0), torch.arange(4.0)
        step(kept, x)
        assert x.tolist() == [0, 2, 4, 6]
        assert kept.tolist() == [0, 1, 2, 3]


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.sum()


def test_three_runs_are_eager_and_one_after_each_move_of_the_weights(cuda: FakeCuda):
    model, x = Sums(), torch.ones(1024, 512)
    step = compile_forward(model, x, "cuda")

    def told_after_a_call() -> str:
        assert step(x).item() == x.numel()
        return repr(step)

    assert (
        "backend cuda, 0 calls, micro-batches per call: 1, eager so far, 3 more to go, 2.1 MB of inputs in one copy, "
        in repr(step)
    )
    assert (
        "1 call, micro-batches per call: 1, eager so far, 2 more to go, 2.1 MB of inputs in one copy"
        in told_after_a_call()
    )
    model.weight.data = model.weight.data.clone()  # before anything is captured this changes nothing
    assert "2 calls, micro-batches per call: 1, eager so far, 1 more to go" in told_after_a_call()
    assert "eager so far, 0 more to go" in told_after_a_call()
    assert "one CUDA graph, captured once, 2.1 MB of inputs in one copy" in told_after_a_call()
    assert "one CUDA graph, captured once" in told_after_a_call()
    moved = model.weight.data = model.weight.data.clone()
    assert "eager so far, 0 more to go" in told_after_a_call()
    assert "one CUDA graph, captured 2 times" in told_after_a_call()
    assert [graph.replays for graph in cuda.graphs] == [2, 1]
    step.reset()
    assert model.weight.data_ptr() == moved.data_ptr()  # nothing of the captured step holds it
    assert "backend cuda, not compiled yet, micro-batches per call: 1)" in repr(step)


def test_eager_runs_and_the_capture_are_in_order_with_what_is_queued(cuda: FakeCuda):
    step = compile_forward(Sums(), torch.ones(2), "cuda")
    for _ in range(5):
        step(torch.ones(2))
    eager = ["stream 2 waits for main", "main waits for stream 2"]
    assert [line for line in cuda.log if "event" not in line] == [*3 * eager, "host waits for all", "captured"]


def test_inputs_on_the_device_are_copied_without_a_stage(cuda: FakeCuda):
    class OnDevice(Tensor):
        device = torch.device("cuda")

    inputs = StaticInputs([torch.zeros(2), torch.zeros(3)], torch.device("cpu"), cuda)
    cuda.log.clear()
    inputs.fill([torch.ones(2).as_subclass(OnDevice), torch.full((3,), 2.0)])
    assert [tensor.tolist() for tensor in inputs.tensors] == [[1, 1], [2, 2, 2]]
    assert [line for line in cuda.log if "host" not in line] == ["event 2 after main"]  # none of copies
    assert inputs.nbytes == 2 * 256


def test_what_an_autocast_of_the_callers_has_cast_is_not_read_again(cuda: FakeCuda):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = model

        def forward(self, x):
            return self.line(x).float().sum()

    loss = Loss()
    optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
    step = compile_step(loss, optimizer, backend="cuda", autocast=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [step(torch.ones(1, 1)).item() for _ in range(6)]
    assert losses == [1, 0, -1, -2, -3, -4]
    assert repr(step).endswith(", autocast bfloat16)")


def test_a_weight_that_the_loss_does_not_need_is_left_alone(cuda: FakeCuda):
    class Half(Sums):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.ones(()))

    model = Half()
    model.unused.grad = torch.ones(())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.5)
    step = compile_step(model, optimizer, backend="cuda", options=StepOptions(max_grad_norm=1.0))
    for _ in range(5):
        step(torch.ones(3))
    assert model.unused.item() == 1.0
    expected = 1.0
    for _ in range(5):
        expected -= 0.5 * (1.0 + 0.5 * expected)
    assert model.weight.item() == pytest.approx(expected, rel=1e-5)


def test_a_model_that_does_not_return_its_loss_is_refused(cuda: FakeCuda):
    class Hidden(Sums):
        def forward(self, x: Tensor) -> Tensor:
            popgeo.identity_loss(super().forward(x))
            return x * 2

    model = Hidden()
    with pytest.raises(ValueError, match=r"The model does not return its loss\. Return it"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2), "cuda")
    assert compile_forward(model, torch.ones(2), "cuda")(torch.ones(2)).tolist() == [2, 2]


def test_what_the_optimizer_cannot_do_in_a_capture_is_told_with_its_first_cause(cuda: FakeCuda, monkeypatch):
    names: dict = {}
    exec("def fail():\n try:\n  {}['cause']\n except KeyError:\n  raise RuntimeError('then this')", names)
    model = Sums()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
    for _ in range(3):
        step(torch.ones(2))
    monkeypatch.setattr(step.bound.runner._optimizer, "step", names["fail"])
    message = (
        r"^in the backward pass or in the optimizer: cannot be part of a captured step \(KeyError: 'cause'\)\. A cap"
    )
    with pytest.raises(ValueError, match=message):
        step(torch.ones(2))
    assert model.weight.grad is None


def test_of_a_long_error_the_first_line_is_told(cuda: FakeCuda, monkeypatch):
    broken: list[bool] = []

    class Raises(Sums):
        def forward(self, x: Tensor) -> Tensor:
            if broken:
                raise RuntimeError("the first line\nthe second line")
            return super().forward(x)

    model = Raises()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2), backend="cuda")
    for _ in range(3):
        step(torch.ones(2))
    broken.append(True)
    with pytest.raises(ValueError, match=r"in forward: raise Runtime.*\(RuntimeError: the first line\)"):
        step(torch.ones(2))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"random_seed": 0},
            r"does not support random_seed\. .*cpu\(\); torch\.manual_seed seeds a GPU\.$",
        ),
        (
            {"loss_scaling": "dynamic"},
            r"does not support a loss_scaling that is not constant\. Leave it out, or",
        ),
        ({"accumulation_dtype": torch.float32}, r"does not support accumulation_dtype\."),
        ({"optimizer_state_dtype": torch.bfloat16}, r"does not support optimizer_state_dtype\."),
        ({"master_weights": True}, r"does not support master_weights\."),
        ({"shard_optimizer_state": True}, r"does not support shard_optimizer_state\."),
        ({"stochastic_rounding": True}, r"does not support .*stochastic_rounding\."),
    ],
    ids=str,
)
def test_choices_that_only_the_processor_serves_are_refused(cuda: FakeCuda, asked: dict, message: str):
    model = Sums()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if asked.get("stochastic_rounding"):
        asked = {**asked, "optimizer_state_dtype": torch.bfloat16}
    with pytest.raises(ValueError, match=rf"^A step on a GPU \(backend='cuda'\) {message}"):
        compile_step(model, optimizer, backend="cuda", options=StepOptions(**asked))
    for backend in ("cpu", "inductor"):
        assert compile_step(model, optimizer, backend=backend, options=StepOptions(**asked)).backend is Backend(backend)


def test_a_scale_of_two_changes_no_gradient_and_does_not_follow_them(cuda: FakeCuda):
    model, step = slopes(loss_scaling=2.0)
    assert step.loss_scale is None
    step(torch.ones(2, 2, dtype=torch.float64))
    assert step.loss_scale is None
    assert model.weight.item() == -1.0


def test_a_step_on_a_gpu_keeps_nothing_that_a_checkpoint_could_hold(cuda: FakeCuda, tmp_path):
    _, step = slopes()
    step(torch.ones(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"Save the state_dict of the model and of the optimizer"):
        step.save(tmp_path / "never")
    with pytest.raises(ValueError, match="A step on a GPU has no random numbers"):
        step.load(tmp_path / "never")
    with pytest.raises(ValueError, match=r"does not support cache_dir"):
        compile_forward(nn.Linear(1, 1), backend="cuda", options=StepOptions(cache_dir=tmp_path))
