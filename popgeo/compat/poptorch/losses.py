"""The mark that tells which tensor is trained on."""

from popgeo.capture.identity_loss import identity_loss

__all__ = ["identity_loss"]
