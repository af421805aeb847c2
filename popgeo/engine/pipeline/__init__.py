"""Runs a step stage by stage: parts of it by turns, each with buffers of its own, and what they hand on kept."""
