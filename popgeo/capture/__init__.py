"""Captures a model's step as one graph of operations with fixed shapes; independent of any machine."""
