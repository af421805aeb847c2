"""Models, one a file; results of real graphs never depend on padding."""
