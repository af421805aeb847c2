"""Other people's files of graphs, as stores on disk."""
