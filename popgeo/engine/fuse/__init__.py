"""Joins operations of a graph into calls that do the work of several; the captured graph itself stays as it is."""
