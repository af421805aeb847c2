"""Costs of operations on the machine: their division over the tiles, their supersteps and cycles."""
