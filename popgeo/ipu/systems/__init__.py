"""What a step would cost before it runs anywhere: reports from shapes alone, and pipelines over several IPUs."""
