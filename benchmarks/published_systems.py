"""BERT, ResNet-50 and EfficientNet as published on 16 and 64 Bow IPUs, and what the plan says of each; nothing fitted.

A row's update takes `accumulation` turns of its pipeline and a rest. Where a program was published on 16 and on 64
IPUs, with another accumulation, the two rows give both; the plan's turn and rest are held against these.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from whole_systems import points

from popgeo import ipu
from popgeo.ipu.systems.pipeline import Pipeline

MEDIAN_GATE, WORST_GATE, PART_GATE = 0.10, 0.25, 0.15
FLOOR = 1.14  # the same program between two frameworks


class Lamb(torch.optim.Optimizer):
    """LAMB (arXiv:1904.00962) on float16 weights with its two moments in float32, as PopART's."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    for name in ("mean", "square"):
                        state[name] = torch.zeros_like(weight, dtype=torch.float32)
                gradient, whole = weight.grad.float(), weight.float()
                state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(gradient, gradient, value=1e-3)
                direction = state["mean"] / (state["square"].sqrt() + 1e-6) + 0.01 * whole
                trust = whole.square().sum().sqrt() / direction.square().sum().sqrt()
                weight.sub_((group["lr"] * trust * direction).to(weight.dtype))


class Attention(nn.Module):
    """Of one layer of BERT: one product for queries, keys and values, scores scaled and masked in float16."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor, batch: int) -> Tensor:
        qkv = self.qkv(x).view(batch, -1, 3, self.heads, x.shape[-1] // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + mask
        weights = scores.softmax(-1)
        if self.dropout:
            weights = nn.functional.dropout(weights, self.dropout)
        out: Tensor = self.out((weights @ value).transpose(1, 2).reshape_as(x))
        return out


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each added to what it got and normalised."""

    def __init__(self, width: int, heads: int, attention_dropout: float, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = Attention(width, heads, attention_dropout)
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor, batch: int) -> Tensor:
        x = self.attention_norm(x + nn.functional.dropout(self.attention(x, mask, batch), self.dropout))
        inner = self.out(nn.functional.gelu(self.into(x)))
        out: Tensor = self.norm(x + nn.functional.dropout(inner, self.dropout))
        return out


class Embedding(nn.Module):
    """Of tokens, positions and segments."""

    def __init__(self, vocabulary: int, width: int, positions: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.segment, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(positions) + self.segment(segments)
        return nn.functional.dropout(self.norm(x), 0.1)


class Pretraining(nn.Module):
    """The heads of the first phase: masked words, whose output weights are the embedding's, and the next sentence."""

    def __init__(self, width: int, embedding: nn.Embedding, masked: int) -> None:
        super().__init__()
        self.masked, self.inner, self.norm = masked, nn.Linear(width, width), nn.LayerNorm(width)
        self.decoder = nn.Linear(width, embedding.num_embeddings, bias=False)
        self.decoder.weight = embedding.weight
        self.pooler, self.next = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x: Tensor, batch: int, words: Tensor, next_sentence: Tensor) -> Tensor:
        x = x.view(batch, -1, x.shape[-1])
        masked = x[:, : self.masked].reshape(-1, x.shape[-1])  # masked words come first in a row
        scores = self.decoder(self.norm(nn.functional.gelu(self.inner(masked))))
        of_words = nn.functional.nll_loss(nn.functional.log_softmax(scores, -1), words, ignore_index=0)
        pooled = torch.tanh(self.pooler(x[:, self.masked]))
        return of_words + nn.functional.cross_entropy(self.next(pooled), next_sentence)


class Spans(nn.Module):
    """The head of SQuAD: the first and the last token of the answer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 2)

    def forward(self, x: Tensor, batch: int, first: Tensor, last: Tensor) -> Tensor:
        begins, ends = self.ends(x).view(batch, -1, 2).unbind(-1)
        return (nn.functional.cross_entropy(begins, first) + nn.functional.cross_entropy(ends, last)) / 2


class Bert(nn.Module):
    """BERT and its loss, as Graphcore's PopART program writes it."""

    def __init__(
        self, *, layers: int, width: int, tokens: int, masked: int = 0, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.masked = tokens, masked
        self.embedding = Embedding(30_400, width, 512)
        self.layers = nn.ModuleList(EncoderLayer(width, width // 64, attention_dropout) for _ in range(layers))
        self.head = Pretraining(width, self.embedding.token, masked) if masked else Spans(width)

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor, mask: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        batch = len(mask)
        x = self.embedding(tokens, positions, segments)
        for layer in self.layers:
            x = layer(x, mask, batch)
        loss: Tensor = self.head(x, batch, first, second)
        return loss

    def example(self, batch: int) -> list[Tensor]:
        rows = torch.zeros(batch * self.tokens, dtype=torch.long)
        mask = torch.zeros(batch, 1, 1, self.tokens, dtype=torch.float16)
        labels = torch.zeros(batch, dtype=torch.long)
        words = torch.zeros(batch * self.masked, dtype=torch.long) if self.masked else labels
        return [rows, rows.clone(), rows.clone(), mask, words, labels.clone()]


def _normed(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """Three convolutions beside a short way, version 1.5: the middle one takes the steps."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_normed(inputs, width, 1), nn.ReLU(), *_normed(width, width, 3, stride), nn.ReLU(),
            *_normed(width, 4 * width, 1),
        )  # fmt: skip
        widens = stride > 1 or inputs != 4 * width
        self.short = nn.Sequential(*_normed(inputs, 4 * width, 1, stride)) if widens else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x) + self.short(x))


class ImageLoss(nn.Module):
    """An image network's input as bytes, and its loss."""

    def normalised(self, image: Tensor) -> Tensor:
        return (image.to(torch.float16) - 0.5) * (1 / 255)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.fc(x.mean((2, 3))), labels)


class ResNet50(ImageLoss):
    """ResNet-50 v1.5."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        inputs = 64
        for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
            layer = []
            for block in range(blocks):
                layer.append(Bottleneck(inputs, width, 2 if number > 1 and block == 0 else 1))
                inputs = 4 * width
            setattr(self, f"layer{number}", nn.Sequential(*layer))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(self.normalised(image))
        return self.loss(self.layer4(self.layer3(self.layer2(self.layer1(x)))), labels)

    def example(self, batch: int) -> list[Tensor]:
        return [torch.zeros(batch, 3, 224, 224, dtype=torch.uint8), torch.zeros(batch, dtype=torch.long)]


class MbConv(nn.Module):
    """A block of EfficientNet with convolutions in groups of 16 channels, expansion 4 and group norm."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        groups = max(1, width // 16)
        self.expand = nn.Sequential(*_grouped(inputs, width, 1), nn.SiLU()) if expansion > 1 else nn.Identity()
        self.spatial = nn.Sequential(*_grouped(width, width, size, stride, groups), nn.SiLU())
        squeezed = max(1, inputs // 4)
        self.squeeze = nn.Sequential(
            nn.Conv2d(width, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, width, 1), nn.Sigmoid()
        )
        self.project = nn.Sequential(*_grouped(width, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = self.spatial(self.expand(x))
        inner = self.project(inner * self.squeeze(inner.mean((2, 3), keepdim=True)))
        return x + inner if self.adds else inner


def _grouped(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution and its group norm of 4 groups."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.GroupNorm(4, outputs)]


class EfficientNetB4(ImageLoss):
    """EfficientNet-B4 of arXiv:2106.03640: 1.4 times as wide and 1.8 times as deep as B0."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 16, 1, 1, 3), (4, 24, 2, 2, 3), (4, 40, 2, 2, 5), (4, 80, 3, 2, 3), (4, 112, 3, 1, 5),
                 (4, 192, 4, 2, 5), (4, 320, 1, 1, 3))  # fmt: skip
        inputs = _rounded(32 * 1.4)
        self.stem = nn.Sequential(*_grouped(3, inputs, 3, 2), nn.SiLU())
        self.blocks = nn.ModuleList()
        for expansion, channels, repeats, stride, size in sizes:
            outputs = _rounded(channels * 1.4)
            layer = nn.Sequential()
            for block in range(math.ceil(repeats * 1.8)):
                layer.append(MbConv(inputs, outputs, size, stride if block == 0 else 1, expansion))
                inputs = outputs
            self.blocks.append(layer)
        last = _rounded(1280 * 1.4)
        self.head = nn.Sequential(*_grouped(inputs, last, 1), nn.SiLU())
        self.fc = nn.Linear(last, 1000)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(self.normalised(image))
        for layer in self.blocks:
            x = layer(x)
        return self.loss(self.head(x), labels)

    def example(self, batch: int) -> list[Tensor]:
        return [torch.zeros(batch, 3, 380, 380, dtype=torch.uint8), torch.zeros(batch, dtype=torch.long)]


def _rounded(channels: float) -> int:
    """Channels as a multiple of 8, and of 16 from 16 on as the groups need it."""
    step = 8
    return max(step, int(channels + step / 2) // step * step)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published throughput and its configuration."""

    name: str
    model: Callable[[], nn.Module]
    batch: int
    accumulation: int
    replicas: int
    stages: Mapping[str, int]
    recompute: Any
    proportion: Any
    optimizer: Callable[..., torch.optim.Optimizer]
    off_chip: bool = False
    shard: bool = False
    serialize: Mapping[str, int] = field(default_factory=dict)
    iterations: int = 1
    overlap_host: bool = False
    schedule: str | None = None


def _bert(layers: int, width: int, **sizes: Any) -> Callable[[], nn.Module]:
    return lambda: Bert(layers=layers, width=width, **sizes)


def _cuts(counts: tuple[int, ...], head: int) -> dict[str, int]:
    """Which layer begins on which IPU; the embedding stands on the first, the heads where they are told to."""
    begins, layer = {}, 0
    for number, count in enumerate(counts):
        if count and (number or not layer):
            begins[f"layers.{layer}"] = number
        layer += count
    begins.pop("layers.0", None) if counts[0] else None
    return begins | ({"head": head} if head != len(counts) - 1 else {})


def _phase_1(name: str, accumulation: int, replicas: int) -> Row:
    return Row(
        name=name, model=_bert(24, 1024, tokens=128, masked=20), batch=8, accumulation=accumulation, replicas=replicas,
        stages=_cuts((3, 7, 7, 7), 0), recompute=[f"layers.{n}" for n in range(24)],
        proportion=(0.15, 0.25, 0.25, 0.25), optimizer=Lamb, off_chip=True, shard=True,
        serialize={"head.decoder": 5},
    )  # fmt: skip


ROWS = (
    _phase_1("bert-l-128-popart-16", 2048, 4),
    _phase_1("bert-l-128-tf1-16", 2050, 4),
    _phase_1("bert-l-128-tf2-16", 2040, 4),
    _phase_1("bert-l-128-popart-64", 512, 16),
    Row(
        name="bert-b-128-popart-16", model=_bert(12, 768, tokens=128, masked=20), batch=32, accumulation=512,
        replicas=4, stages=_cuts((0, 4, 4, 4), 0), recompute=[f"layers.{n}" for n in range(12)],
        proportion=0.28, optimizer=Lamb, off_chip=True, shard=True, serialize={"head.decoder": 5},
    ),
    Row(
        name="bert-l-squad-popart-16", model=_bert(24, 1024, tokens=384, attention_dropout=0.1), batch=4,
        accumulation=32, replicas=2, stages=_cuts((2, 3, 3, 3, 3, 3, 3, 4), 7),
        recompute=[f"layers.{n}" for n in range(24)], proportion=(0.1, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4, 0.32),
        optimizer=Lamb, shard=True, iterations=4,
    ),
    Row(
        name="resnet50-tf1-64", model=ResNet50, batch=20, accumulation=2, replicas=64,
        stages=dict.fromkeys(("layer1.1", "layer2.0", "layer2.1", "layer2.3", "layer3.1", "layer3.4"), 0),
        recompute=True, proportion=0.145, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        iterations=100, schedule="PipelineSchedule.Sequential",
    ),
    Row(
        name="effnet-b4-tf1-16", model=EfficientNetB4, batch=3, accumulation=256, replicas=8,
        stages={"blocks.3": 1}, recompute=True, proportion=0.4,
        optimizer=lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9), iterations=10, overlap_host=True,
    ),
)  # fmt: skip


def plan_of(row: Row) -> Pipeline:
    """The plan of a published configuration."""
    with torch.device("meta"):
        model = row.model()
    model = model.to(torch.float16)
    options = ipu.Options(
        gradient_accumulation=row.accumulation, replication_factor=row.replicas, device_iterations=row.iterations,
        matmul_proportion=row.proportion, shard_optimizer_state=row.shard, strict=False,
    )  # fmt: skip
    optimizer = row.optimizer(model.parameters())
    return ipu.pipeline(
        model, model.example(row.batch), options, optimizer, stages=row.stages, recompute=row.recompute,
        serialize=row.serialize, optimizer_off_chip=row.off_chip, overlap_host=row.overlap_host, schedule=row.schedule,
    )  # fmt: skip


def turn_and_rest(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Seconds of a turn and of the rest of an update, of the same program with two accumulations.

    Args:
        seconds: Of an update, by the number of micro-batches.

    Example:
        >>> turn_and_rest({100: 1.5, 50: 1.0})
        (0.01, 0.5)
    """
    (many, long), (few, short) = sorted(seconds.items(), reverse=True)
    turn = (long - short) / (many - few)
    return turn, long - many * turn


def tell(folder: Path) -> None:
    """Prints each published row beside its plan, then the turn and the rest of the pairs."""
    print(f"\n{'BERT, ResNet, EfficientNet':<26}{'IPUs':>5}{'published':>12}{'modelled':>12}{'ratio':>7}", end="")
    print(f"{'turn, ms':>10}{'rest, s':>9}{'memory':>8}  items/s, Bow")
    errors, updates = [], {}
    for row in ROWS:
        start = time.perf_counter()
        plan = plan_of(row)
        ((ipus, measured),) = points(folder, row.name, "real").items()
        modelled = plan.micro_batches_per_second * row.batch
        errors.append(abs(modelled / measured - 1))
        updates[row.name] = row.accumulation * row.replicas * row.batch / measured, row.accumulation, plan
        turn, rest = _parts(plan)
        print(
            f"{row.name:<26}{ipus:>5}{measured:>12,.0f}{modelled:>12,.0f}{modelled / measured:>7.2f}{turn * 1e3:>10.2f}"
            f"{rest:>9.4f}{max(plan.memory):>8.0%}  ({time.perf_counter() - start:.0f} s)"
        )
    met = median(errors) <= MEDIAN_GATE and max(errors) <= WORST_GATE
    print(
        f"  median error {median(errors):.0%} (goal {MEDIAN_GATE:.0%}), largest {max(errors):.0%} "
        f"(goal {WORST_GATE:.0%}): {'met' if met else 'MISSED'}; one program differs by {FLOOR} between two frameworks"
    )
    first, second = (updates[f"bert-l-128-popart-{ipus}"] for ipus in (16, 64))
    turn, rest = turn_and_rest({count: seconds for seconds, count, _ in (first, second)})
    rest -= (len(first[2].turns) - first[1]) * turn  # filling and draining the pipeline
    for name, published, modelled in zip(("turn", "rest"), (turn, rest), _parts(first[2]), strict=True):
        verdict = "met" if abs(modelled / published - 1) <= PART_GATE else "MISSED"
        print(f"  {name} of BERT-Large in PopART: {published:.4f} s published, {modelled:.4f} s modelled, {verdict}")


def _parts(plan: Pipeline) -> tuple[float, float]:
    """Seconds of a turn, or of a micro-batch where one is through before the next one begins, and of the rest."""
    clock, rest = plan.target.clock, max(plan.update)
    whole = max((turn.end - turn.start for turn in plan.turns), default=(plan.cycles - rest) / plan.micro_batches)
    return whole / clock, rest / clock
