"""PopTorch Geometric's names over popgeo's loaders."""
