"""Arguments of loaders that contradict each other."""

import pytest
import torch

from tests.support.loaders import loader_of


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"batch_size": 3}, "batch_size is 3 and fixed_size_options.num_graphs is 6"),
        ({"num_nodes": 3}, "Both fixed_size_options and num_nodes"),
        ({"fixed_size_options": None, "num_edges": 3}, "num_edges is given without num_nodes"),
        ({"strategy": "Best"}, r"'Best' is not a FixedSizeStrategy; pass one of \['PadToMax'"),
        ({"collate_fn": list}, "takes no collate_fn"),
        ({"generator": torch.Generator()}, "takes no generator"),
        ({"rank": 2, "world_size": 2}, "rank is 2 and world_size 2"),
        ({"rank": 0}, "rank is 0 and world_size None; pass both"),
        ({"options": 0}, "asks for 0 batches"),
        ({"sampler": [1], "shuffle": True}, "can decide the order"),
    ],
)
def test_arguments_that_contradict_are_refused(arguments, found):
    with pytest.raises(ValueError, match=found):
        loader_of(**arguments)
