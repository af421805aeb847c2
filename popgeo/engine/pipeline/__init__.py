"""Runs a step stage by stage: each pass with buffers of its own, and what passes hand on kept until it is used."""
