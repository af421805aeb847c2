"""torch_scatter's functions over `popgeo.ops`, for programs on computers where that package is not installed."""
