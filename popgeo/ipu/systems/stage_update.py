"""What follows the last micro-batch of a pipeline: sums over replicas, the optimizer, and its state."""

from collections.abc import Sequence
from dataclasses import dataclass

from popgeo.capture.op_graph import OpGraph, Role
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.links import message_seconds, replica_ring, ring_seconds, streaming_rate
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.options import Options
from popgeo.ipu.step_cost import accumulation, total
from popgeo.ipu.systems.stage_cost import StageCost
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """One update of all weights.

    Attributes:
        graph: Its program.
        costs: Of its operations.
        adding: Of adding the gradients of one micro-batch to those before.
    """

    graph: OpGraph
    costs: tuple[OpCost, ...]
    adding: tuple[OpCost, ...]

    @classmethod
    def of(cls, graph: OpGraph, target: IpuTarget) -> "UpdateCost":
        """What an update costs on a machine."""
        return cls(graph=graph, costs=cost(graph, target), adding=cost(accumulation(graph), target))


def accumulation_cycles(update: UpdateCost, stages: Sequence[StageCost]) -> list[float]:
    """Cycles in which each stage adds the gradients of one micro-batch to those before: its share of the weights."""
    cycles = total(update.adding).cycles
    weights = sum(stage.weight_bytes for stage in stages)
    return [cycles * stage.weight_bytes / weights for stage in stages]


def update_cycles(
    update: UpdateCost | None,
    stages: Sequence[StageCost],
    num_ipus: int,
    options: Options,
    *,
    off_chip: bool = False,
    all_off_chip: bool = False,
    sharded: bool = False,
) -> tuple[dict[str, tuple[float, ...]], tuple[int, ...]]:
    """Cycles of the update by what they are for, and bytes of gradients and optimizer state, on each IPU.

    Args:
        update: One update of all weights; None where nothing is trained.
        stages: Of the pipeline; each IPU takes the share of the update that its weights are of all.
        num_ipus: Of one replica.
        options: The machine and the replicas.
        off_chip: The optimizer's state lies in streaming memory, is read before the update and written after it.
        all_off_chip: So do weights and gradients.
        sharded: Each replica holds and updates a part of the weights' state, and all then gather the weights.
    """
    if update is None:
        return {"optimizer": (0.0,) * num_ipus}, (0,) * num_ipus
    replicas, target = options.replication_factor, options.target
    held = [sum(s.weight_bytes - s.held_before for s in stages if s.ipu == ipu) for ipu in range(num_ipus)]
    weights, gradients, state = (
        sum(update.graph.values[v].nbytes for v in update.graph.inputs_of(role).values())
        for role in (Role.PARAMETER, Role.GRADIENT, Role.STATE)
    )
    owners = replicas if sharded else 1
    shares = [own / weights for own in held]
    cycles = total(update.costs).cycles / owners
    state_of = [share * state / owners for share in shares]
    exchanged = [0.0] * num_ipus
    for stage in stages:
        if stage.shared_bytes and num_ipus > 1:  # gradients come in, and the updated weights go back
            others = [other.ipu for other in stages if other.ipu != stage.ipu]
            slowest = max(message_seconds(stage.shared_bytes, stage.ipu, other, target) for other in others)
            exchanged[stage.ipu] += 2 * slowest * target.clock
    # Sharded or not, as much goes round: sums of parts once round, then parts of gradients or of weights.
    rings = [ring_seconds(own, replica_ring(i, num_ipus, replicas), target) for i, own in enumerate(held)]
    rate = streaming_rate(num_ipus * replicas, target)
    parts = {
        "optimizer": tuple(share * cycles for share in shares),
        "shared weights": tuple(exchanged),
        "sum over replicas": tuple(seconds * target.clock for seconds in rings),
    }
    of_gradients = [share * gradients for share in shares]
    if off_chip or all_off_chip:
        moved = [2 * own for own in state_of]  # read and written
        if all_off_chip:
            moved = [own + 2 * weight + grad for own, weight, grad in zip(moved, held, of_gradients, strict=True)]
        parts["streaming memory"] = tuple(nbytes / rate * target.clock for nbytes in moved)
        state_of = [0.0] * num_ipus
    on_chip = [0.0 if all_off_chip else own + grad for own, grad in zip(state_of, of_gradients, strict=True)]
    return parts, tuple(round(nbytes) for nbytes in on_chip)
