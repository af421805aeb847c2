"""Many tasks on one trunk: labels of graphs and of nodes, with missing labels, in mixed packs (arXiv:2310.04292)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.nn.loss import known_labels, l1_loss
from popgeo.nn.mlp import MLP
from popgeo.nn.readout import READOUTS
from popgeo.ops.refusals import check_choice, check_least, check_shapes


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task, with labels to predict for each graph or for each node.

    Attributes:
        name: Key of the predictions and of the labels.
        num_labels: Labels of one graph or node.
        level: `"graph"` or `"node"`.
        loss: Function of predictions, labels and a mask of the same shape, such as `popgeo.nn.l1_loss` or
            `binary_cross_entropy`.
        weight: Weight of the task's loss in the sum.

    Raises:
        ValueError: there is no label, the level is unknown, or the weight is not positive.
    """

    name: str
    num_labels: int
    level: str = "graph"
    loss: Callable[[Tensor, Tensor, Tensor], Tensor] = l1_loss
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_least(1, f"Task {self.name!r} predicts something.", num_labels=self.num_labels)
        check_choice(f"level of task {self.name!r}", self.level, ("graph", "node"))
        if not self.weight > 0:
            raise ValueError(f"weight of task {self.name!r} is {self.weight}; it must be positive. Leave out the task.")


class Multitask(nn.Module):
    """A shared trunk with a head for each task, as in Graphium's baselines (arXiv:2310.04292, sec. 5).

    Args:
        trunk: Model that returns `channels` features for each node, such as `GINE`, `GIN`, `GCN` or `GPS` without a
            readout.
        channels: Features of a node in the trunk's result.
        tasks: Tasks to predict.
        hidden_channels: Features between the layers of each head. Default: `channels`.
        readout: Reduction of each graph's nodes: `"add"`, `"mean"` or `"max"`.
        dropout: Share of features zeroed before each head in training.

    Raises:
        ValueError: there is no task, two tasks have one name, the readout is unknown, or the trunk has a readout.

    Example:
        >>> from popgeo.nn import GIN
        >>> tasks = [Task(name="energy", num_labels=1), Task(name="charge", num_labels=1, level="node")]
        >>> model = Multitask(GIN(3, 8, 2), 8, tasks)
        >>> x, edge_index, batch = torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
        >>> {name: tuple(out.shape) for name, out in model(x, edge_index, batch=batch, num_graphs=2).items()}
        {'energy': (2, 1), 'charge': (4, 1)}
    """

    def __init__(
        self,
        trunk: nn.Module,
        channels: int,
        tasks: Sequence[Task],
        hidden_channels: int | None = None,
        readout: str = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        names = [task.name for task in tasks]
        if not names or len({*names}) < len(names):
            raise ValueError(f"The tasks are {names}; there must be at least one, and no two of one name.")
        check_choice("readout", readout, READOUTS)
        if getattr(trunk, "readout", None) is not None:
            raise ValueError("The trunk has a readout, so it has no rows for nodes. Make it with readout=None.")
        self.trunk, self.tasks, self.readout, self.dropout = trunk, tuple(tasks), readout, dropout
        hidden = channels if hidden_channels is None else hidden_channels
        self.heads = nn.ModuleDict({task.name: MLP([channels, hidden, task.num_labels]) for task in tasks})

    def forward(
        self, x: Tensor, edge_index: Tensor, *, batch: Tensor, num_graphs: int, **inputs: Any
    ) -> dict[str, Tensor]:
        """Return the predictions of each task, by name.

        Args:
            x: Features. [num_nodes, in_channels]
            edge_index: Source and destination of each edge. [2, num_edges]
            batch: Graph of each node, ascending. [num_nodes]
            num_graphs: Graphs in the batch, padding included.
            **inputs: Other arguments of the trunk, such as masks and `edge_attr`.

        Returns:
            [num_graphs, num_labels] or, at the level of nodes, [num_nodes, num_labels].
        """
        nodes = self.trunk(x, edge_index, batch=batch, num_graphs=num_graphs, **inputs)  # [num_nodes, channels]
        rows = {"node": nodes, "graph": READOUTS[self.readout](nodes, batch, num_graphs)}
        return {
            task.name: self.heads[task.name](F.dropout(rows[task.level], self.dropout, self.training))
            for task in self.tasks
        }

    def losses(
        self,
        predictions: Mapping[str, Tensor],
        labels: Mapping[str, Tensor],
        nodes_mask: Tensor | None = None,
        graphs_mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the tasks' losses, and each loss; NaN labels and padding do not count.

        Args:
            predictions: Result of `forward`.
            labels: Labels of each task, in the shape of its predictions; NaN if not measured.
            nodes_mask: True where the node is real. [num_nodes]
            graphs_mask: True where the graph is real. [num_graphs]

        Returns:
            The sum, and each task's loss by name; 0 for a task without a label in the batch.

        Raises:
            ValueError: a task has no labels, or labels of a different shape.

        Example:
            >>> model = Multitask(nn.Identity(), 1, [Task(name="a", num_labels=2), Task(name="b", num_labels=1)])
            >>> predictions = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[3.0]])}
            >>> total, each = model.losses(predictions, {"a": torch.tensor([[0.5, torch.nan]]), "b": torch.ones(1, 1)})
            >>> total, each["a"], each["b"]
            (tensor(2.5000), tensor(0.5000), tensor(2.))
        """
        masks, each = {"node": nodes_mask, "graph": graphs_mask}, {}
        for task in self.tasks:
            if task.name not in labels:
                raise ValueError(f"Task {task.name!r} has no labels; there are {sorted(labels)}. Pass rows of NaN.")
            out, label = predictions[task.name], labels[task.name]
            check_shapes(f"Task {task.name!r} predicts this shape; reshape the labels.", labels=(label, out.shape))
            each[task.name] = task.loss(out, label, known_labels(label, masks[task.level]))
        return torch.stack([task.weight * each[task.name] for task in self.tasks]).sum(), each

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"tasks={[task.name for task in self.tasks]}, readout={self.readout!r}"
