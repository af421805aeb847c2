"""PopTorch's optimizers: torch's, with the arguments that a machine without float64 and with small float16 needs.

`names.csv` lists the homes of the names.
"""
