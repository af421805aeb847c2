"""Epochs of NequIP and SchNetPack for potentials.py; each variant has its own model and optimizer."""

import typing
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from popgeo import StepOptions, compile_step

SYMBOLS, NUM_LAYERS = ["Al", "Ni", "Cu"], 2


def no_change(model: nn.Module) -> Any:
    """Return the model unchanged."""
    return model


class OtherEpochs:
    """The common part of both: one Adam step per batch, by the framework's loss or in one module."""

    ragged: Any
    fixed: Any

    def another(self, one_pass: bool) -> nn.Module:
        """Return a new model with the common initial weights."""
        raise NotImplementedError

    def loss(self, called: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the framework's loss of a batch of either loader."""
        raise NotImplementedError

    def step(self, model: nn.Module) -> nn.Module:
        """Return the step as one module with a batch's tensors as arguments."""
        raise NotImplementedError

    def own(self, loader: Any, wrap: Callable[[nn.Module], Any] = no_change, one_pass: bool = False) -> Any:
        """Return an epoch with the framework's model and loss."""
        model = self.another(one_pass)
        called, optimizer = wrap(model), torch.optim.Adam(model.parameters(), lr=1e-3)

        def epoch() -> None:
            for batch in loader:
                optimizer.zero_grad()
                self.loss(called, batch).backward()
                optimizer.step()

        return epoch

    def compiled(self, backend: str, one_pass: bool = False) -> Callable[[], None]:
        """Return an epoch with a compiled step."""
        step = self.step(self.another(one_pass))
        optimizer = torch.optim.Adam(step.parameters(), lr=1e-3)
        first, options = self.known(next(iter(self.fixed))), StepOptions(num_threads=1)
        call = compile_step(step, optimizer, first, backend=backend, options=options)

        def epoch() -> None:
            for batch in self.fixed:
                call(**self.known(batch))

        return epoch

    def known(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the part of a batch that the step receives."""
        return batch


class NequIPEpochs(OtherEpochs):
    """NequIP's loss of energy per atom and forces, in eager mode, since its compiled mode uses torch.compile."""

    def __init__(self, atoms: list[Any], channels: int, batch_size: int, cutoff: float) -> None:
        from nequip.data import AtomicDataDict, from_ase
        from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
        from nequip.train import EnergyForceLoss
        from nequip.utils.global_state import set_global_state

        from popgeo.potentials.nequip import fixed_size_loader

        set_global_state()
        self.channels, self.cutoff = channels, cutoff
        mapper, neighbors = ChemicalSpeciesToAtomTypeMapper(SYMBOLS), NeighborListTransform(cutoff)
        frames = [neighbors(mapper(from_ase(one))) for one in atoms]
        make = AtomicDataDict.batched_from_list
        self.ragged = torch.utils.data.DataLoader(frames, batch_size, shuffle=True, collate_fn=make)  # type: ignore[arg-type]
        self.fixed = fixed_size_loader(frames, cutoff=cutoff, batch_size=batch_size + 1, shuffle=True)
        self.loss_fn, self.first = EnergyForceLoss(), self.model()

    def model(self) -> nn.Module:
        from nequip.model import NequIPGNNModel

        return NequIPGNNModel(
            seed=0, model_dtype="float32", type_names=SYMBOLS, r_max=self.cutoff, num_bessels=8, num_layers=NUM_LAYERS,
            l_max=2, parity=False, num_features=self.channels, radial_mlp_depth=1, radial_mlp_width=32,
            avg_num_neighbors=20.0, per_type_energy_shifts=dict.fromkeys(SYMBOLS, 0.0), compile_mode="eager",
        )  # fmt: skip

    def another(self, one_pass: bool) -> nn.Module:
        from popgeo.potentials.nequip import in_one_pass

        model = self.model()
        model.load_state_dict(self.first.state_dict())
        return in_one_pass(model) if one_pass else model

    def loss(self, called: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        from popgeo.potentials.nequip import of_real

        given = {name: value for name, value in batch.items() if not name.endswith("_mask")}
        return self.loss_fn(of_real(called(given), batch), of_real(batch, batch))["weighted_sum"]

    def known(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Replace NaN, the target of padding, by numbers, since masks remove only numbers from a sum."""
        return {name: value.nan_to_num() if value.is_floating_point() else value for name, value in batch.items()}

    def step(self, model: nn.Module) -> nn.Module:
        return _NequIPStep(model)


class _NequIPStep(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """Return the squared errors of energies per atom plus the squared errors of forces, over real rows."""
        from popgeo.potentials.padding import mean_over_real

        out = self.model({name: value for name, value in batch.items() if not name.endswith("_mask")})
        energy = (out["total_energy"] - batch["total_energy"]) / batch["num_atoms"][:, None]
        of_energy = mean_over_real(energy.square(), batch["graphs_mask"])
        return of_energy + mean_over_real((out["forces"] - batch["forces"]).square(), batch["nodes_mask"])


class SchNetPackEpochs(OtherEpochs):
    """SchNetPack's task with PaiNN, energies and forces."""

    def __init__(self, atoms: list[Any], channels: int, batch_size: int, cutoff: float) -> None:
        from torch.utils.data import dataloader

        if not hasattr(dataloader, "T_co"):
            dataloader.T_co = typing.TypeVar("T_co", covariant=True)  # type: ignore[attr-defined]  # needed by version 2.1
        from schnetpack.data.loader import _atoms_collate_fn
        from schnetpack.transform import ASENeighborList, CastTo32

        from popgeo.potentials.schnetpack import fixed_size_loader

        self.channels, self.cutoff = channels, cutoff
        find, narrow = ASENeighborList(cutoff), CastTo32()
        items = []
        for number, one in enumerate(atoms):
            item = {
                "_idx": torch.tensor([number]),
                "_n_atoms": torch.tensor([len(one)]),
                "_atomic_numbers": torch.tensor(one.numbers),
                "_positions": torch.tensor(one.positions),
                "_cell": torch.tensor(one.cell.array)[None],
                "_pbc": torch.tensor(one.pbc),
                "energy": torch.tensor([one.get_potential_energy()]),
                "forces": torch.tensor(one.get_forces()),
            }
            items.append(narrow(find(item)))
        self.ragged = torch.utils.data.DataLoader(items, batch_size, shuffle=True, collate_fn=_atoms_collate_fn)  # type: ignore[arg-type]
        self.fixed = fixed_size_loader(items, cutoff=cutoff, batch_size=batch_size + 1, shuffle=True)
        self.first = self.model()

    def model(self) -> nn.Module:
        import schnetpack as spk

        radial = spk.nn.GaussianRBF(n_rbf=20, cutoff=self.cutoff)
        envelope = spk.nn.CosineCutoff(self.cutoff)
        model = spk.model.NeuralNetworkPotential(
            spk.representation.PaiNN(2 * self.channels, 3, radial_basis=radial, cutoff_fn=envelope),
            input_modules=[spk.atomistic.PairwiseDistances()],
            output_modules=[
                spk.atomistic.Atomwise(n_in=2 * self.channels, output_key="energy"),
                spk.atomistic.Forces(),
            ],
        )
        return self.task(model)

    def task(self, model: nn.Module) -> Any:
        from schnetpack.task import ModelOutput

        from popgeo.potentials.schnetpack import FixedSizeTask

        outputs = [ModelOutput(name, nn.MSELoss(), 1.0, metrics={}) for name in ("energy", "forces")]
        return FixedSizeTask(model, outputs, optimizer_args={"lr": 1e-3})

    def another(self, one_pass: bool) -> nn.Module:
        from popgeo.potentials.schnetpack import in_one_pass

        task = self.model()
        task.load_state_dict(self.first.state_dict())
        return in_one_pass(task) if one_pass else task

    def loss(self, called: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return called.loss_fn(called(dict(batch)), called._with_real_targets(batch))

    def step(self, model: nn.Module) -> nn.Module:
        from popgeo.potentials.schnetpack import TaskStep

        return TaskStep(model.model, model.outputs)  # type: ignore[arg-type]  # a module of outputs
