"""Parameters with replica groups: each group trains and reads its own row."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from popgeo.compat import poptorch

ONE_PER_GROUP = poptorch.VariableRetrievalMode.OnePerGroup


class Product(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x):
        z = x @ self.weight
        return z, poptorch.identity_loss(z.square(), reduction="mean")


@pytest.mark.parametrize("kind", [poptorch.CommGroupType.Orthogonal, poptorch.CommGroupType.Consecutive])
def test_a_product_cut_by_columns_and_by_rows_over_eight_replicas_trains_as_the_whole(kind):
    x, weight = torch.randn(6, 5), torch.randn(5, 8)
    whole = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([whole], lr=0.1)
    parts = Product(weight.reshape(5, 4, 2).transpose(0, 1))
    options = poptorch.Options().replicationFactor(8).outputMode(poptorch.OutputMode.All)
    step = poptorch.trainingModel(parts, options, torch.optim.SGD(parts.parameters(), lr=0.1))
    step.weight.replicaGrouping(kind, 2, ONE_PER_GROUP)  # four groups with two columns each
    half_of = [r // 4 if kind == poptorch.CommGroupType.Orthogonal else r % 2 for r in range(8)]
    given = torch.cat([x.reshape(2, 3, 5)[half] for half in half_of])
    for _ in range(3):
        optimizer.zero_grad()
        loss = (x @ whole).square().mean()
        loss.backward()
        optimizer.step()
        assert_close(step(given)[1].mean(), loss.detach())
    assert_close(parts.weight.transpose(0, 1).reshape(5, 8), whole)


def test_without_grouping_each_replica_reads_its_own_row_also_in_inference_and_with_device_iterations():
    model = Product(torch.randn(2, 3, 1))
    step = poptorch.inferenceModel(model, poptorch.Options().replicationFactor(2).deviceIterations(2))
    step.weight.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, ONE_PER_GROUP)
    x = torch.randn(4, 3)
    assert_close(step(x)[0], torch.stack([x[i] @ model.weight[i % 2] for i in range(4)]))


def test_all_replicas_share_a_parameter_and_one_without_rows_is_refused():
    options = poptorch.Options().replicationFactor(2)
    step = poptorch.inferenceModel(Product(torch.ones(3, 1)), options)
    step.weight.replicaGrouping(poptorch.CommGroupType.All, 0, ONE_PER_GROUP)
    assert_close(step(torch.ones(2, 3))[0], torch.full((2, 1), 3.0))
    step = poptorch.inferenceModel(Product(torch.ones(3, 1)), options)
    step.weight.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, ONE_PER_GROUP)
    with pytest.raises(poptorch.Error, match=r"weight of shape \[3, 1\] needs one row for each group of 1 among 2"):
        step(torch.ones(2, 3))
