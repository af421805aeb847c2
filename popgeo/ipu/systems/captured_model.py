"""A captured model and what every plan of it shares, so that another plan need not capture it again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.capture.passes import fold_constants
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.options import Options
from popgeo.ipu.systems.cut import Block, blocks_of
from popgeo.ipu.systems.share import trained_names, update_of
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.memory_use import MemoryUse


@dataclass(frozen=True, kw_only=True)
class CapturedModel:
    """The program of one micro-batch, and what was worked out for one plan of it and may serve the next.

    Attributes:
        graph: Its operations.
        target: One IPU.
        blocks: The layers of the forward pass.
        num_results: How many of the graph's outputs are results; the others are gradients.
        capture_update: Captures the update under options; None where nothing is trained.
        plans: Costs of all operations by the share of memory that products may take.
        memories: Of stages, by IPU, what is repeated, and operations.
        updates: Programs of the update by whether gradients are accumulated.
    """

    graph: OpGraph
    target: IpuTarget
    blocks: Sequence[Block]
    num_results: int
    capture_update: Callable[[Options], OpGraph] | None
    plans: dict[float, Sequence[OpCost]] = field(default_factory=dict)
    memories: dict[tuple[object, ...], MemoryUse] = field(default_factory=dict)
    updates: dict[bool, OpGraph] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: nn.Module, example: Sequence[Any], options: Options, optimizer: Optimizer | None
    ) -> "CapturedModel":
        """Captures a model from shapes alone.

        Args:
            model: A module that returns its loss, where there is an optimizer.
            example: The positional arguments of one micro-batch.
            options: The machine, and the loss's scale.
            optimizer: Over parameters of the model; None for inference.
        """
        trained = trained_names(model, optimizer)
        arguments, scaling = bind(model.forward, *example), options.constant_loss_scaling
        step = capture_step(model, arguments, trained=trained, loss_scaling=scaling)
        update = None if optimizer is None else partial(_capture_update, model, step, optimizer)
        return cls.of_step(step, options.target, update)

    @classmethod
    def of_step(
        cls, step: CapturedStep, target: IpuTarget, capture_update: Callable[[Options], OpGraph] | None
    ) -> "CapturedModel":
        """The same of a step that is captured already."""
        graph = fold_constants(step.graph)
        return cls(
            graph=graph,
            target=target,
            blocks=blocks_of(graph),
            num_results=step.num_results,
            capture_update=capture_update,
        )

    @property
    def trains(self) -> bool:
        return self.capture_update is not None

    def costs(self, matmul_proportion: float) -> Sequence[OpCost]:
        """What each operation costs where products may take such a share of a tile's memory."""
        if matmul_proportion not in self.plans:
            self.plans[matmul_proportion] = cost(self.graph, self.target, matmul_proportion=matmul_proportion)
        return self.plans[matmul_proportion]

    def update(self, options: Options) -> OpGraph | None:
        """The update's program; None where nothing is trained."""
        accumulates = options.gradient_accumulation * options.replication_factor > 1
        if self.capture_update is not None and accumulates not in self.updates:
            self.updates[accumulates] = self.capture_update(options)
        return self.updates.get(accumulates)


def _capture_update(model: nn.Module, step: CapturedStep, optimizer: Optimizer, options: Options) -> OpGraph:
    return update_of(model, step, optimizer, options).capture()
