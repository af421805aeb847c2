"""Searches and layers with static shapes, which `names.csv` lists. -1 marks a missing neighbor."""
