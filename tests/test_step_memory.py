"""The memory of a step is known before it runs: by kind, for any shape, and the largest batch follows from it."""

import resource

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

import popgeo
from popgeo import FixedSizeOptions
from popgeo.nn import GIN, PaiNN, mse_loss
from popgeo.step_memory import most_within

GRAPHS = [Data(x=torch.ones(3 + i % 5, 4), y=torch.ones(1, 1)) for i in range(200)]
for one in GRAPHS:
    one.edge_index = torch.arange(one.num_nodes).repeat(2, 1)
SIZES = FixedSizeOptions.tune(GRAPHS, 40, verbose=False)


class Gap(nn.Module):
    """A model of graphs with its loss."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.gin = GIN(4, channels, 2, out_channels=1, readout="mean")

    def forward(self, x, edge_index, batch, y, graphs_mask, num_graphs):
        found = self.gin(x, edge_index, batch=batch, num_graphs=num_graphs)
        return found, mse_loss(found, y, graphs_mask)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def test_each_kind_is_what_the_compiled_step_then_holds():
    model = Gap()
    optimizer, weights = adam(model), sum(p.nbytes for p in model.parameters())
    known = popgeo.memory(model, SIZES, optimizer, example=GRAPHS[0]).compiled
    batch = next(iter(popgeo.FixedSizeDataLoader(GRAPHS, fixed_size_options=SIZES, fixed_size_strategy="Window")))
    step = popgeo.compile_step(model, optimizer)
    step(batch)
    runner = step.bound.on_processor
    given = sum(value.nbytes for value in (batch.x, batch.edge_index, batch.batch, batch.y, batch.graphs_mask))
    assert known.activations + given == runner.usual.buffer_bytes
    assert known.batch == 2 * given  # the caller's tensors, and their places in the step
    assert known.gradients + known.optimizer_state == pytest.approx(runner.state_bytes - weights, abs=64)
    assert known.weights == pytest.approx(2 * weights, abs=64)  # the update has joined weights


def test_asking_changes_neither_model_nor_optimizer_nor_random_numbers():
    model = Gap()
    optimizer = adam(model)
    weights, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    model.gin.eval()
    popgeo.memory(model, SIZES, optimizer, example=GRAPHS[0])
    popgeo.memory(model, SIZES, example=GRAPHS[0])
    assert all(torch.equal(one, p) and p.grad is None for one, p in zip(weights, model.parameters(), strict=True))
    assert not optimizer.state
    assert torch.equal(state, torch.get_rng_state())
    assert (model.training, model.gin.training) == (True, False)


def test_the_memory_of_a_step_that_no_computer_holds_is_known():
    wide, x = nn.Linear(1, 2**16, bias=False), torch.ones(2**20, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = popgeo.memory(wide, x)
    assert found.eager.peak == pytest.approx(2**38, rel=1e-3)
    assert found.compiled.peak == pytest.approx(2 * 2**38, rel=1e-3)  # the result, and the copy that a call returns
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1e5  # kilobytes


def test_forces_need_more_than_energies_and_training_more_than_a_prediction():
    model, sizes = PaiNN(16, 2, cutoff=4.0), FixedSizeOptions(num_nodes=600, num_edges=3000, num_graphs=20)
    energies, forces = popgeo.memory(model, sizes), popgeo.memory(model, sizes, forces=True)
    gap = Gap()
    predicted, trained = (popgeo.memory(gap, SIZES, chosen, example=GRAPHS[0]) for chosen in (None, adam(gap)))
    for less, more in ((energies, forces), (predicted, trained)):
        assert less.compiled.peak < more.compiled.peak
        assert less.eager.peak < more.eager.peak
    assert predicted.compiled.optimizer_state == predicted.compiled.gradients == 0
    with pytest.raises(ValueError, match="To train on forces, pass a model that returns its loss"):
        popgeo.memory(model, sizes, adam(model), forces=True)


def test_micro_batches_share_the_memory_of_a_step_and_their_gradients_have_a_sum():
    model, options = Gap(), popgeo.StepOptions(gradient_accumulation=3)
    choices = {"fixed_size_options": SIZES, "fixed_size_strategy": "Window"}
    one, three = (next(iter(popgeo.FixedSizeDataLoader(GRAPHS, **choices, options=o))) for o in (None, options))
    alone = popgeo.memory(model, one, adam(model))
    found = popgeo.memory(model, three, adam(model), options=options)
    assert found.compiled.gradients == 2 * alone.compiled.gradients
    assert found.compiled.activations == alone.compiled.activations
    assert found.eager.activations == alone.eager.activations
    with pytest.raises(ValueError, match="A call has 3 micro-batches, but the sizes are of one"):
        popgeo.memory(model, SIZES, adam(model), example=GRAPHS[0], options=options)


@pytest.mark.parametrize("name", ["SGD", "Adam", "ASGD", "Adafactor"])
def test_the_state_of_an_optimizer_is_known_before_its_first_step(name):
    model = nn.Linear(40, 30)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **({"momentum": 0.9} if name == "SGD" else {}))
    found = popgeo.memory(_Squares(model), torch.ones(8, 40), optimizer)
    _Squares(model)(torch.ones(8, 40)).backward()
    optimizer.step()
    held = sum(
        part.nbytes for state in optimizer.state.values() for part in state.values() if isinstance(part, torch.Tensor)
    )
    assert found.eager.optimizer_state == held
    assert found.compiled.optimizer_state == pytest.approx(held, abs=64)  # step counts are joined


class _Squares(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()


def test_the_largest_batch_that_fits_is_found():
    model = Gap()
    optimizer = adam(model)
    sizes = FixedSizeOptions.tune(GRAPHS, memory="300 kB", model=model, optimizer=optimizer, align=1, verbose=False)
    needed = [
        popgeo.memory(model, one, optimizer, example=GRAPHS[0]).compiled.peak
        for one in (sizes, FixedSizeOptions.tune(GRAPHS, 1.1 * sizes.num_graphs, align=1, verbose=False))
    ]
    assert needed[0] <= 300_000 < needed[1]
    everything = FixedSizeOptions.tune(GRAPHS, memory="1 GB", model=model, optimizer=optimizer, verbose=False)
    assert everything == FixedSizeOptions.tune(GRAPHS, len(GRAPHS), verbose=False)
    with pytest.raises(ValueError, match=r"A batch of one graph needs .* kB and the memory is 1.0 kB\. Use fewer"):
        FixedSizeOptions.tune(GRAPHS, memory="1 kB", model=model, optimizer=optimizer)
    with pytest.raises(ValueError, match="pass the step's model, too"):
        FixedSizeOptions.tune(GRAPHS, memory="1 kB")


@pytest.mark.parametrize("step", [1, 7, 400])
@pytest.mark.parametrize("fixed", [0, 900_000])
@pytest.mark.parametrize("largest", [1, 2, 113, 4_999, 5_000])
def test_a_few_measurements_find_the_largest_number_also_if_many_numbers_have_one_size(step, fixed, largest):
    asked = list[int]()

    def needed(number: int) -> int:
        asked.append(number)
        return fixed + 1000 * (number // step)

    limit = needed(largest)
    found = most_within(max(limit, 1), needed, most=5_000)
    assert needed(found) <= limit
    assert found == 5_000 or needed(found + 1) > limit
    assert len(asked) < 30


def test_a_model_with_other_attributes_asks_for_an_example():
    with pytest.raises(ValueError, match=r"takes x, y, which the graphs do not have; .* pass example="):
        popgeo.memory(Gap(), SIZES)


def test_the_table_and_the_picture_add_up_to_the_peak():
    found = popgeo.memory(Gap(), SIZES, example=GRAPHS[0])
    frame = found.to_frame()
    assert frame.sum().to_dict() == {"compiled": found.compiled.peak, "eager": found.eager.peak}
    title, head, *rows = str(found).splitlines()
    assert title.startswith("Gap, prediction of a batch of ")
    assert head.split() == ["compiled", "eager"]
    assert [row[:15].strip() for row in rows] == [*(name.replace("_", " ") for name in frame.index), "together"]
    ax = found.plot(limit="2 MB")
    widths = [sum(bar.get_width() for bar in ax.patches if abs(bar.get_y() + 0.3 - place) < 0.1) for place in (0, 1)]
    assert widths == [found.compiled.peak, found.eager.peak]
    assert ax.lines[0].get_xdata()[0] == 2_000_000
