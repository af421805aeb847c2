"""The cost of a step before it runs: reports from shapes alone, and pipelines over several IPUs."""
