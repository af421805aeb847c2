"""PopTorch's names over popgeo's executor."""
