"""The optimizer's update as a captured graph."""
