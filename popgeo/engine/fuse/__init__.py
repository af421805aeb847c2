"""Fuses operations of a graph into calls that do the work of several operations; the captured graph stays unchanged."""
