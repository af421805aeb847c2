"""Operations as exchanges and compute sets: a file for each family, named as in `cost/`."""
