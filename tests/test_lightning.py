"""Lightning trains a compiled step like an eager module: counts, checkpoints, schedules, logs, resuming."""

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.loader.test_trainers import by_two_processes, skip_without
from tests.test_documents import REPOSITORY, blocks

GUIDE = REPOSITORY / "docs" / "guides" / "training.md"
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of Lightning


@pytest.fixture(autouse=True)
def _lightning():
    skip_without("lightning")


def both(folder: Path, *, model=None, schedule="cycle", callbacks=list, **choices):
    """Return trainers and modules after equal runs, the eager run first."""
    from lightning.pytorch.loggers import CSVLogger

    from tests.support import lightning_runs as runs

    done = []
    for kind in (runs.Eager, runs.Compiled):
        module = kind((model or runs.Regression)())
        module.schedule = schedule
        logger = CSVLogger(folder / kind.__name__)
        trainer = runs.trainer_in(
            folder, callbacks=callbacks(), **{"logger": logger, "log_every_n_steps": 1, **choices}
        )
        trainer.fit(module, runs.loader(shuffle=True), runs.loader())
        done.append((trainer, module))
    return done


def assert_equal_runs(done):
    from tests.support.lightning_runs import weights

    (eager, expected), (compiled, found) = done
    torch.testing.assert_close(weights(found), weights(expected), rtol=1e-3, atol=1e-4)
    assert compiled.global_step == eager.global_step > 0
    assert compiled.current_epoch == eager.current_epoch
    for name, value in eager.callback_metrics.items():
        torch.testing.assert_close(compiled.callback_metrics[name], value, rtol=1e-3, atol=1e-4)


def test_checkpoints_schedules_clipping_and_logs_are_those_of_an_eager_module(tmp_path: Path):
    from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint

    def callbacks():
        steps = ModelCheckpoint(filename="{step}", every_n_train_steps=7, save_top_k=-1)
        return [steps, ModelCheckpoint(filename="{epoch}", save_top_k=-1), LearningRateMonitor()]

    choices = {"max_epochs": 3, "gradient_clip_val": 0.5, "enable_progress_bar": True}
    done = both(tmp_path, callbacks=callbacks, **choices)
    assert_equal_runs(done)
    eager, compiled = (sorted(p.name for p in Path(t.log_dir).rglob("*.ckpt")) for t, _ in done)
    assert compiled == eager
    assert len(compiled) == 3 + done[0][0].global_step // 7
    tables = [list(csv.DictReader((Path(t.log_dir) / "metrics.csv").open())) for t, _ in done]
    rates = [[float(row["lr-Adam"]) for row in table if row["lr-Adam"]] for table in tables]
    assert rates[0] == rates[1]
    assert len(set(rates[1])) > 10
    losses = [torch.tensor([float(row["train_loss"]) for row in table if row["train_loss"]]) for table in tables]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)


def test_max_steps_ends_the_run(tmp_path: Path):
    done = both(tmp_path, max_steps=4, max_epochs=9)
    assert_equal_runs(done)
    assert done[1][0].global_step == 4


def test_early_stopping_and_a_schedule_that_follows_a_metric_are_those_of_an_eager_module(tmp_path: Path):
    from lightning.pytorch.callbacks import EarlyStopping

    def callbacks():
        return [EarlyStopping("val_loss", patience=2, min_delta=1e9)]

    done = both(tmp_path, schedule="plateau", callbacks=callbacks, max_epochs=9)
    assert_equal_runs(done)
    assert done[1][0].current_epoch == 3
    rates = [trainer.optimizers[0].param_groups[0]["lr"] for trainer, _ in done]
    assert rates[0] == rates[1] < 3e-3


def test_averages_of_weights_are_those_of_an_eager_module(tmp_path: Path):
    from lightning.pytorch import callbacks as known
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    assert_equal_runs(both(tmp_path, callbacks=lambda: [StochasticWeightAveraging(1e-3, 2)], max_epochs=4))
    if hasattr(known, "EMAWeightAveraging"):  # from Lightning 2.6 on
        assert_equal_runs(both(tmp_path, callbacks=lambda: [known.EMAWeightAveraging(decay=0.9)], max_epochs=2))


def test_the_statistics_of_norms_after_an_average_of_weights_are_those_of_an_eager_module(tmp_path: Path):
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    from tests.support.lightning_runs import Normed

    done = both(tmp_path, model=Normed, callbacks=lambda: [StochasticWeightAveraging(1e-3, 1)], max_epochs=3)
    assert_equal_runs(done)
    (_, expected), (_, found) = done
    norms = [module.model.norm.module for module in (expected, found)]
    torch.testing.assert_close(norms[1].state_dict(), norms[0].state_dict(), rtol=1e-3, atol=1e-4)
    assert norms[1].num_batches_tracked > 0


def test_parameters_that_are_frozen_or_released_between_updates_are_followed(tmp_path: Path):
    from lightning.pytorch.callbacks import BaseFinetuning, LambdaCallback

    from tests.support.lightning_runs import Normed

    class Finetuning(BaseFinetuning):
        def freeze_before_training(self, module):
            self.freeze(module.model.gin)

        def finetune_function(self, module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(module.model.gin, optimizer, lr=1e-3)

    def freeze(trainer, module, batch, batch_idx):
        if trainer.global_step == 5:
            module.model.norm.requires_grad_(False)
            trainer.optimizers[0].param_groups[0]["lr"] = 1e-4

    def callbacks():
        return [Finetuning(), LambdaCallback(on_train_batch_start=freeze)]

    assert_equal_runs(both(tmp_path, model=Normed, schedule="none", callbacks=callbacks, max_epochs=2))


def test_anomaly_detection_names_the_operation_that_makes_a_nan(tmp_path: Path):
    from tests.support import lightning_runs as runs

    class Broken(runs.Regression):
        def forward(self, x, edge_index, batch, y, graphs_mask, num_graphs):
            out, loss = super().forward(x, edge_index, batch, y, graphs_mask, num_graphs)
            return out, (loss - loss - 1.0).log()

    assert_equal_runs(both(tmp_path, max_epochs=1, detect_anomaly=True))
    trainer = runs.trainer_in(tmp_path, max_epochs=1, detect_anomaly=True)
    with pytest.raises(FloatingPointError, match="log"):
        trainer.fit(runs.Compiled(Broken()), runs.loader())


def test_bfloat16_of_the_trainer_is_that_of_an_eager_module(tmp_path: Path):
    from tests.support.lightning_runs import weights

    (_, expected), (_, found) = both(tmp_path, max_epochs=1, precision="bf16-mixed")
    torch.testing.assert_close(weights(found), weights(expected), rtol=0.1, atol=0.02)


def test_micro_batches_of_an_item_accumulate_as_lightning_accumulates_batches(tmp_path: Path):
    from popgeo import StepOptions
    from tests.support import lightning_runs as runs

    options = StepOptions(gradient_accumulation=2)
    module, twin = runs.Compiled(runs.Regression(), options), runs.Eager(runs.Regression())
    trainer = runs.trainer_in(tmp_path, max_steps=3)
    trainer.fit(module, runs.loader(options=options))
    runs.trainer_in(tmp_path, max_steps=3, accumulate_grad_batches=2).fit(twin, runs.loader())
    torch.testing.assert_close(runs.weights(module), runs.weights(twin), rtol=1e-3, atol=1e-4)
    assert trainer.global_step == 3


@pytest.mark.parametrize(
    ("choices", "options", "expected"),
    [
        ({"accumulate_grad_batches": 2}, {}, r"accumulate_grad_batches is 2.*StepOptions\(gradient_accumulation"),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, {}, "gradient_clip_algorithm is 'value'"),
        ({}, {"device_iterations": 2}, "device_iterations is 2; Lightning counts one update"),
    ],
)
def test_what_a_compiled_step_does_not_do_is_rejected_by_name(choices, options, expected, tmp_path: Path):
    from popgeo import StepOptions
    from tests.support import lightning_runs as runs

    module = runs.Compiled(runs.Regression(), StepOptions(**options))
    with pytest.raises(ValueError, match=expected):
        runs.trainer_in(tmp_path, max_epochs=1, **choices).fit(module, runs.loader())


def test_manual_optimization_in_which_lightning_would_not_count_is_rejected(tmp_path: Path):
    from tests.support import lightning_runs as runs

    module = runs.Compiled(runs.Regression())
    module.automatic_optimization = False
    with pytest.raises(ValueError, match="automatic_optimization is False; leave it at True"):
        runs.trainer_in(tmp_path, max_epochs=1).fit(module, runs.loader())


def test_a_hook_that_would_find_no_gradients_is_rejected_when_the_class_is_defined():
    from tests.support.lightning_runs import Compiled

    class Clips:
        def configure_gradient_clipping(self, *args, **kwargs): ...

    with pytest.raises(TypeError, match=r"defines configure_gradient_clipping, .*StepOptions\(max_grad_norm"):
        type("Clipping", (Clips, Compiled), {})


@pytest.mark.parametrize("hook", ["on_after_backward", "on_before_optimizer_step"])
def test_a_callback_that_would_find_no_gradients_is_rejected_by_name(hook: str, tmp_path: Path):
    import lightning
    from lightning.pytorch.callbacks import LambdaCallback

    from tests.support import lightning_runs as runs

    kind = type("Clipping", (lightning.Callback,), {hook: lambda self, *args: None})
    for callback in (kind(), LambdaCallback(**{hook: print})):
        trainer = runs.trainer_in(tmp_path, max_epochs=1, callbacks=[callback])
        with pytest.raises(ValueError, match=f"{type(callback).__name__} defines {hook}, .*register_step_pre_hook"):
            trainer.fit(runs.Compiled(runs.Regression()), runs.loader())


def test_a_loss_that_was_computed_outside_of_the_step_is_rejected(tmp_path: Path):
    from tests.support import lightning_runs as runs

    class Eagerly(runs.Compiled):
        def training_step(self, batch, batch_idx):
            return self(batch.x, batch.edge_index, batch.batch, batch.y, batch.graphs_mask, batch.num_graphs)[1]

    class Decayed(runs.Compiled):
        def training_step(self, batch, batch_idx):
            return self.step(batch)[1] + sum(p.norm() for p in self.parameters())

    for kind in (Eagerly, Decayed):
        with pytest.raises(
            ValueError, match=r"training_step returns a loss with a gradient, .*within the model's forw"
        ):
            runs.trainer_in(tmp_path, max_epochs=1).fit(kind(runs.Regression()), runs.loader())


def test_clipping_that_is_changed_during_a_run_is_rejected(tmp_path: Path):
    from lightning.pytorch.callbacks import LambdaCallback

    from tests.support import lightning_runs as runs

    def clip(trainer, module, batch, batch_idx):
        trainer.gradient_clip_val = 0.1 if batch_idx == 2 else trainer.gradient_clip_val

    callbacks = [LambdaCallback(on_train_batch_start=clip)]
    with pytest.raises(ValueError, match=r"gradient_clip_val has become 0\.1 after the first update"):
        runs.trainer_in(tmp_path, max_epochs=1, callbacks=callbacks).fit(
            runs.Compiled(runs.Regression()), runs.loader()
        )


@pytest.mark.parametrize(("after", "seed"), [(5, 0), (5, None), (0, None)])
def test_a_run_that_is_resumed_ends_with_the_same_bits(after: int, seed: int | None, tmp_path: Path):
    from tests.support import lightning_runs as runs

    class Noisy(runs.Compiled):
        def on_train_batch_start(self, batch: Any, number: int) -> None:
            batch.x = batch.x + torch.rand(()) / 9  # drawn outside of the step

    ended, path = [], tmp_path / "stopped.ckpt"
    for stops in (False, True):
        module = Noisy(runs.Regression(dropout=0.3))
        if stops:
            torch.manual_seed(3)
            stop = runs.Stop(path, after=after or len(runs.loader(shuffle=True, seed=seed)))
            trainer = runs.trainer_in(tmp_path, max_epochs=2, callbacks=[stop])
            trainer.fit(module, runs.loader(shuffle=True, seed=seed))
            module = Noisy(runs.Regression(dropout=0.3))
        torch.manual_seed(7 if stops else 3)
        trainer = runs.trainer_in(tmp_path, max_epochs=2)
        trainer.fit(module, runs.loader(shuffle=True, seed=seed), ckpt_path=path if stops else None)
        ended.append((trainer.global_step, runs.weights(module), torch.rand(2)))
    assert ended[0][0] == ended[1][0]
    assert torch.equal(ended[0][1], ended[1][1])
    assert torch.equal(ended[0][2], ended[1][2])


@pytest.mark.parametrize("package", ["tensorboardX", "wandb"])
def test_loggers_get_the_losses(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

    from tests.support import lightning_runs as runs

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = TensorBoardLogger(tmp_path) if package == "tensorboardX" else WandbLogger(save_dir=tmp_path)
    logged = {}
    monkeypatch.setattr(logger, "log_metrics", lambda metrics, step=None: logged.update({step: metrics}))
    module = runs.Compiled(runs.Regression())
    runs.trainer_in(tmp_path, max_steps=3, logger=logger, log_every_n_steps=1).fit(module, runs.loader())
    assert [step for step, metrics in logged.items() if "train_loss" in metrics] == [0, 1, 2]


def test_two_processes_train_as_eager_modules_under_ddp_do(tmp_path: Path):
    first, second = by_two_processes("tests.support.lightning_runs", tmp_path, [])
    assert first["Compiled"] == second["Compiled"]
    assert first["Compiled"][0] == first["Eager"][0] > 0
    assert first["resumed"] == first["whole"]
    assert first["cuda"] == second["cuda"]
    torch.testing.assert_close(torch.tensor(first["cuda"]), torch.tensor(first["cpu"]), rtol=1e-3, atol=1e-4)
    assert first["exchanges"] == 1  # not the wrapper's too
    assert list(tmp_path.glob("cuda/**/*.ckpt"))
    torch.testing.assert_close(torch.tensor(first["Compiled"]), torch.tensor(first["Eager"]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("package", ["lightning", "accelerate"])
def test_the_guides_block_of_a_trainer_runs(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    skip_without(package)
    monkeypatch.chdir(tmp_path)
    given = [text for _, language, text in blocks(GUIDE, "python", "text")]
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(given[0], namespace)
    exec(next(text for text in given if f"import {package}" in text or f"from {package} " in text), namespace)
    assert list(tmp_path.rglob("*.ckpt")) or (tmp_path / "state").is_dir()
