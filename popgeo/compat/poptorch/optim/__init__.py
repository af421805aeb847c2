"""PopTorch's optimizers: torch's, with arguments for the IPU's float16 and float32 types.

`names.csv` lists the modules that define them.
"""
