"""Models, one per file. Results of real graphs never depend on padding."""
