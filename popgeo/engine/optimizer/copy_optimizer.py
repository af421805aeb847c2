"""Optimizers like another one, over other parameters."""

import copy
from collections import defaultdict

from torch.optim import Optimizer


def without_parameters(optimizer: Optimizer) -> Optimizer:
    """The same optimizer with no groups and no state; hooks and schedulers stay with the one given.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
        >>> other = without_parameters(sgd)
        >>> other.defaults["lr"], other.param_groups, len(sgd.param_groups)
        (0.5, [], 1)
    """
    other = copy.copy(optimizer)
    # torch's copies leave out what others keep in attributes; `step` there is a scheduler's, for the one given.
    missing = vars(optimizer).keys() - vars(other).keys() - {"step"}
    vars(other).update({name: vars(optimizer)[name] for name in missing})
    other.state, other.param_groups = defaultdict(dict), []
    return other
