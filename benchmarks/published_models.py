"""BERT, ResNet-50, EfficientNet-B4 and LAMB with the settings of the published runs on IPUs."""

import math
from typing import Any

import torch
from torch import Tensor, nn


class Lamb(torch.optim.Optimizer):
    """LAMB (arXiv:1904.00962) on float16 weights with both moments in float32, as in PopART."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
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
    """Attention of a BERT layer: one product for queries, keys, values; scores scaled and masked in float16."""

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
    """Attention and a feed-forward network, each with a residual connection and a norm."""

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
    """The sum of the embeddings of tokens, positions and segments."""

    def __init__(self, vocabulary: int, width: int, positions: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.segment, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(positions) + self.segment(segments)
        return nn.functional.dropout(self.norm(x), 0.1)


class Pretraining(nn.Module):
    """The heads of the first phase: masked words, with the embedding's weights, and the next sentence."""

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
    """BERT and its loss, as in Graphcore's PopART program."""

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
    """Return a convolution and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut, version 1.5: the middle convolution has the stride."""

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
    """The common part of image networks: bytes as input, and the loss."""

    def normalised(self, image: Tensor) -> Tensor:
        return (image.to(torch.float16) - 0.5) * (1 / 255)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.get_submodule("fc")(x.mean((2, 3))), labels)


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
            self.add_module(f"layer{number}", nn.Sequential(*layer))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(self.normalised(image))
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.loss(x, labels)

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
    """Return a convolution and its group norm of 4 groups."""
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
    """Round channels to a multiple of 8."""
    step = 8
    return max(step, int(channels + step / 2) // step * step)
