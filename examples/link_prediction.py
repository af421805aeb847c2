"""Predict which papers of Cora cite each other, from batches of edges, negatives and sampled neighbors.

    python examples/link_prediction.py --root data/planetoid --name Cora

A tenth of the edges is held out. Of the other edges, 30 % are only used for learning, and messages use the rest, so
that the model never sees an edge that it predicts. Batches contain edges, equally many pairs without an edge, and
sampled neighbors of all their ends. GCN embeds the papers, and the product of two embeddings scores an edge. AUC is the
share of pairs (held-out edge, random pair) that the model ranks correctly.
"""

import argparse

import torch
from torch import Tensor, nn
from torch_geometric.datasets import Planetoid
from torch_geometric.transforms import Compose, NormalizeFeatures, RandomLinkSplit

from popgeo import FixedSizeLinkLoader, inference_model, training_model
from popgeo.command_line import run
from popgeo.nn import GCN, binary_cross_entropy
from popgeo.ops import gather


class Training(nn.Module):
    """A network that scores links, with the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor, edge_label: Tensor, edge_label_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the scores [num_labels] of the links `edge_label_index` [2, num_labels], and the loss."""
        h = self.network(x, edge_index)
        score = (gather(h, edge_label_index[0]) * gather(h, edge_label_index[1])).sum(1)
        return score, binary_cross_entropy(score, edge_label, edge_label_mask)


def auc(score: Tensor, label: Tensor) -> float:
    """Return the share of pairs (positive, negative) with a higher score for the positive."""
    rank = score.argsort().argsort().double()[label == 1] + 1
    positives, negatives = int((label == 1).sum()), int((label == 0).sum())
    return float((rank.sum() - positives * (positives + 1) / 2) / (positives * negatives))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data/planetoid", help="folder of PyG's Planetoid datasets")
    parser.add_argument("--name", default="Cora", help="dataset")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    split = RandomLinkSplit(
        num_val=0.0, num_test=0.1, is_undirected=True, disjoint_train_ratio=0.3, add_negative_train_samples=False
    )
    dataset = Planetoid(arguments.root, arguments.name, transform=Compose([NormalizeFeatures(), split]))
    train, _, test = dataset[0]
    loader = FixedSizeLinkLoader(
        train, [10, 10], train.edge_label_index, neg_sampling="binary", shuffle=True, batch_size=256, sort_edges=True
    )
    held_out = FixedSizeLinkLoader(
        test, [20, 20], test.edge_label_index, test.edge_label, batch_size=512, sort_edges=True
    )
    print(loader)
    model = Training(GCN(train.num_features, 2 * arguments.channels, num_layers=2, out_channels=arguments.channels))
    trainer = training_model(model.train(), optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    predictor = inference_model(model)
    for epoch in range(arguments.epochs):
        losses = [float(trainer(batch)[1]) for batch in loader]
        scored = [(predictor(b)[0][b.edge_label_mask], b.edge_label[b.edge_label_mask]) for b in held_out]
        score, label = (torch.cat(parts) for parts in zip(*scored, strict=True))
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}, AUC on edges held out {auc(score, label):.3f}")


if __name__ == "__main__":
    run(main)
