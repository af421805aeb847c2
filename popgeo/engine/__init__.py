"""Runs captured steps on this computer, with the results of eager PyTorch; independent of the simulated IPU."""
