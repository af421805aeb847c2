"""The program of a bound graph: native calls and calls of torch on memory that is allocated once."""
