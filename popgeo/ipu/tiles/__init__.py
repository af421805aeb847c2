"""Where data lies on the tiles, what fits there, and the program of vertices and transfers that runs on them."""
