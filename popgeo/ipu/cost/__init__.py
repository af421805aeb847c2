"""What each operation costs on the machine: how it is divided over the tiles, its supersteps and their cycles."""
