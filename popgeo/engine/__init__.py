"""Runs a captured step on this computer, with the results of eager PyTorch; knows no IPU."""
