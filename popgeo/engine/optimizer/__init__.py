"""Updates of the weights by an optimizer."""
