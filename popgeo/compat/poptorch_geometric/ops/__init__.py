"""Searches and layers whose shapes never depend on data; -1 marks a neighbour that is missing. See `names.csv`."""
