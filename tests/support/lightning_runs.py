"""Lightning runs with a compiled and with an eager module, also in torchrun's processes.

torchrun --nproc-per-node 2 -m tests.support.lightning_runs FOLDER
"""

import inspect
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.lightning import CompiledModule
from popgeo.nn import GIN, BatchNorm, mse_loss
from tests.support.fake_cuda import install

NUM_GRAPHS = 40


def graph(number: int) -> Data:
    """Return a ring of 2 to 6 nodes."""
    size = 2 + number % 5
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(number))
    ring = torch.stack([torch.arange(size), torch.arange(size).roll(1)])
    return Data(x=x, edge_index=ring, y=x.sum().view(1))


def loader(**choices: Any) -> FixedSizeDataLoader:
    """Return a loader of batches with about four graphs."""
    sizes, graphs = FixedSizeOptions(21, 21, 6), [graph(i) for i in range(NUM_GRAPHS)]
    return FixedSizeDataLoader(graphs, fixed_size_options=sizes, fixed_size_strategy="Window", **{"seed": 0, **choices})


class Regression(nn.Module):
    """A model of predictions with its loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.gin, self.dropout = GIN(3, 8, 2, out_channels=1, readout="sum"), nn.Dropout(dropout)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor, num_graphs: int
    ) -> tuple[Tensor, Tensor]:
        out = self.gin(self.dropout(x), edge_index, batch=batch, num_graphs=num_graphs).flatten()
        return out, mse_loss(out, y, graphs_mask)


class Normed(Regression):
    """The same model with a batch norm over real nodes before it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(3, 3, bias=False), BatchNorm(3)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor,
        y: Tensor,
        graphs_mask: Tensor,
        num_graphs: int,
        nodes_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        x = self.norm(self.lin(x), nodes_mask=nodes_mask)
        return super().forward(x, edge_index, batch, y, graphs_mask, num_graphs)


class Schedules:
    """The common part of both modules."""

    schedule = "cycle"

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=3e-3)
        rates = torch.optim.lr_scheduler
        if self.schedule == "none":
            return optimizer
        if self.schedule == "plateau":
            plateau = rates.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=1e9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        steps = self.trainer.estimated_stepping_batches
        cycle = rates.OneCycleLR(optimizer, max_lr=1e-2, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self(batch)[1], batch_size=int(batch.graphs_mask.sum()), sync_dist=True)


class Compiled(Schedules, CompiledModule):
    """The module with the compiled step."""


class Eager(Schedules, lightning.LightningModule):
    """The module in usual Lightning code."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model(**{name: getattr(batch, name) for name in inspect.signature(self.model.forward).parameters})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self(batch)[1]
        self.log("train_loss", loss, prog_bar=True)
        return loss


def trainer_in(folder: Path, **choices: Any) -> lightning.Trainer:
    """Return a quiet trainer."""
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(**{"accelerator": "cpu", "devices": 1, "default_root_dir": folder, **quiet, **choices})


def weights(module: nn.Module) -> Tensor:
    """Return all weights of a module in one tensor."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


class Stop(lightning.Callback):
    """A callback that saves a checkpoint after `after` updates, as an interruption would leave it."""

    def __init__(self, path: Path, after: int) -> None:
        self.path, self.after = path, after

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.after:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True
            trainer.limit_val_batches = 0


def main(folder: str) -> None:
    """Run both modules, and a resumed run of the compiled module, in each process."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for kind in (Eager, Compiled):
        module = kind(Regression())
        trainer = trainer_in(Path(folder), devices=2, strategy="ddp", max_epochs=2, enable_checkpointing=False)
        trainer.fit(module, loader(shuffle=True), loader())
        found[kind.__name__] = [trainer.global_step, *weights(module).tolist()]
    with pytest.MonkeyPatch.context() as patched:
        cuda = install(patched)
        for backend in ("cpu", "cuda"):
            module = Compiled(Regression(), backend=backend)
            module.schedule = "none"
            trainer = trainer_in(Path(folder) / backend, devices=2, strategy="ddp", max_epochs=2)
            trainer.fit(module, loader(shuffle=True), loader())
            found[backend] = weights(module).tolist()
        names = [func._schema.name for graph in cuda.graphs for func, *_ in graph.ops]
        found["exchanges"] = names.count("c10d::allreduce_")
    path = Path(folder) / "stopped.ckpt"
    for name, callbacks, resumes in (
        ("whole", [], None),
        ("stopped", [Stop(path, after=3)], None),
        ("resumed", [], path),
    ):
        module, ddp = Compiled(Regression(dropout=0.3)), {"devices": 2, "strategy": "ddp", "max_epochs": 2}
        torch.manual_seed(0 if resumes is None else 5)
        trainer = trainer_in(Path(folder), **ddp, callbacks=callbacks)
        trainer.fit(module, loader(shuffle=True), ckpt_path=resumes)
        found[name] = weights(module).tolist()
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
