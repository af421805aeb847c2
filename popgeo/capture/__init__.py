"""A model's step becomes one graph of operations, every shape fixed; knows no machine."""
