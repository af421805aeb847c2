"""A classifier of handwritten digits, written for PopTorch and in plain PyTorch.

    python examples/digits_poptorch.py
    python examples/digits_poptorch.py --epochs 3 --device-iterations 5

Five changes turn a program for a GPU into a program for IPUs, and here they run on any computer: options with device
iterations, `poptorch.DataLoader`, `poptorch.trainingModel`, `poptorch.inferenceModel` and `detachFromDevice`. The
digits are the 1797 images of 8 x 8 pixels that come with scikit-learn. The script prints the accuracy of both programs
on the held-out digits (about 97 %), and the treatment of every used part of PopTorch. It needs
`pip install scikit-learn`.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from popgeo import compat
from popgeo.command_line import run

compat.enable()
import poptorch  # noqa: E402  `compat.enable` makes the name importable

NUM_TRAINING = 1400


class Classifier(nn.Module):
    """Two convolutions and two dense layers, with the loss, which PopTorch expects inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
        self.loss = nn.CrossEntropyLoss()

    def forward(self, pictures: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the scores of the ten digits [batch, 10], and with labels also the loss []."""
        scores = self.layers(pictures)
        return scores if labels is None else (scores, self.loss(scores, labels))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return training and held-out images, with values between 0 and 1, and their digits, in random order."""
    held = load_digits()
    order = torch.randperm(len(held.target), generator=torch.Generator().manual_seed(0))
    pictures = torch.tensor(held.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(held.target)[order]
    return (
        TensorDataset(pictures[:NUM_TRAINING], labels[:NUM_TRAINING]),
        TensorDataset(pictures[NUM_TRAINING:], labels[NUM_TRAINING:]),
    )


def in_pytorch(training: TensorDataset, held_out: TensorDataset, epochs: int, batch_size: int) -> float:
    """Train as on a processor or a GPU; return the accuracy on the held-out digits."""
    loader = DataLoader(training, batch_size=batch_size, shuffle=True, drop_last=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    model.train()
    for _ in range(epochs):
        for pictures, labels in loader:
            optimizer.zero_grad()
            _, loss = model(pictures, labels)
            loss.backward()
            optimizer.step()

    model.eval()
    correct = 0
    with torch.no_grad():
        for pictures, labels in DataLoader(held_out, batch_size=batch_size):
            correct += int((model(pictures).argmax(1) == labels).sum())
    return correct / len(held_out)


def in_poptorch(
    training: TensorDataset, held_out: TensorDataset, epochs: int, batch_size: int, device_iterations: int
) -> float:
    """Train with the program for IPUs, which marks new and changed lines; return the accuracy."""
    options = poptorch.Options().deviceIterations(device_iterations)  # new
    loader = poptorch.DataLoader(options, training, batch_size=batch_size, shuffle=True)  # changed
    model = Classifier()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=2e-3)

    model.train()
    training_model = poptorch.trainingModel(model, options, optimizer)  # new
    for _ in range(epochs):
        for pictures, labels in loader:
            training_model(pictures, labels)  # device_iterations steps, with their backward pass and updates
    training_model.detachFromDevice()  # new

    model.eval()
    inference_model = poptorch.inferenceModel(model)  # new
    correct = 0
    for pictures, labels in poptorch.DataLoader(poptorch.Options(), held_out, batch_size=batch_size, drop_last=False):
        scores = inference_model(pictures) if len(pictures) == batch_size else model(pictures)  # compiled for one shape
        correct += int((scores.argmax(1) == labels).sum())
    inference_model.detachFromDevice()
    return correct / len(held_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="images per step")
    parser.add_argument("--device-iterations", type=int, default=20, help="steps per call of the model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    training, held_out = digits()

    torch.manual_seed(0)
    share = in_pytorch(training, held_out, arguments.epochs, arguments.batch_size)
    print(f"PyTorch:  {100 * share:.1f} % of {len(held_out)} held-out digits", flush=True)
    torch.manual_seed(0)
    share = in_poptorch(training, held_out, arguments.epochs, arguments.batch_size, arguments.device_iterations)
    print(f"PopTorch: {100 * share:.1f} % of {len(held_out)} held-out digits", flush=True)
    print()
    print(poptorch.compat_report().to_string(index=False))


if __name__ == "__main__":
    run(main)
