"""Runs a step stage by stage; each pass has its own buffers, and values for later passes wait until they are used."""
