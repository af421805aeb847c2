"""The mapping of data to tiles, its memory, and the program of vertices and transfers that runs on the tiles."""
