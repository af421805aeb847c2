"""Searches and layers whose shapes never depend on data; -1 marks a neighbor that is missing. See `names.csv`."""
