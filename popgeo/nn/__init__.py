"""Models, their parts and their losses: results never depend on padding."""

from popgeo.nn.interaction import (
    InteractionGraph,
    KNNInteractionGraph,
    PairInteractionGraph,
    PrecomputeInteractionGraph,
    RadiusInteractionGraph,
)
from popgeo.nn.loss import l1_loss, masked_mean, mse_loss
from popgeo.nn.radial import CosineEnvelope, GaussianSmearing, PolynomialEnvelope, ShiftedSoftplus
from popgeo.nn.schnet import SchNet

__all__ = [
    "CosineEnvelope",
    "GaussianSmearing",
    "InteractionGraph",
    "KNNInteractionGraph",
    "PairInteractionGraph",
    "PolynomialEnvelope",
    "PrecomputeInteractionGraph",
    "RadiusInteractionGraph",
    "SchNet",
    "ShiftedSoftplus",
    "l1_loss",
    "masked_mean",
    "mse_loss",
]
