"""The compiled library: every instruction set gives the same bits, and it is found, or missed, as it says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from popgeo.native import library
from popgeo.ops import ScatterPlan, cfconv, gather_scatter, scatter_sum, shifted_softplus
from popgeo.sampling import CompressedGraph

FUZZ = Path(__file__).with_name("fuzz.py")
BASELINE, NEWEST = 0, -1


@pytest.fixture
def choose_isa():
    choose = library.function("popgeo_choose_isa", "q", "q")
    if choose is None:
        pytest.skip(library.reason())
    if choose(NEWEST) == BASELINE:
        pytest.skip("this processor has the baseline instruction set only")
    yield choose
    choose(NEWEST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [1, 7, 16, 33, 100, 128, 250])
def test_every_instruction_set_gives_the_same_bits(choose_isa, generator, dtype, channels):
    src, dst = torch.randint(30, (2, 400), generator=generator)
    x, w, grad = (torch.randn(n, channels, generator=generator).to(dtype) for n in (30, 400, 30))
    x.requires_grad_()
    w.requires_grad_()
    rows = ScatterPlan.from_index(dst, 30).set_tiles(2)  # with tiles, a sum goes row by row

    def run():
        out = cfconv(x, w, src, dst, 30)
        sums = (scatter_sum(w.detach(), dst, 0, dim_size=30, plan=plan) for plan in (None, rows))
        return (out.detach(), *torch.autograd.grad(out, (x, w), grad), *sums)

    newest = run()
    for isa in range(choose_isa(NEWEST)):
        assert choose_isa(isa) == isa
        for one, two in zip(newest, run(), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 1e-6), (torch.float64, 1e-15)])
def test_activations_have_the_same_bits_wherever_multiplying_and_adding_is_one_step(choose_isa, dtype, accuracy):
    x, grad = torch.linspace(-70, 70, 10_003, dtype=dtype), torch.linspace(-3, 3, 10_003, dtype=dtype)

    def run():
        leaf = x.clone().requires_grad_()
        out = shifted_softplus(leaf)
        return out.detach(), *torch.autograd.grad(out, leaf, grad)

    newest = run()
    for isa in range(BASELINE + 1, choose_isa(NEWEST)):
        choose_isa(isa)
        for one, two in zip(newest, run(), strict=True):
            assert torch.equal(one, two)
    choose_isa(BASELINE)  # which rounds twice
    for one, two in zip(newest, run(), strict=True):
        assert torch.allclose(one, two, rtol=accuracy, atol=accuracy / 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("isa", [BASELINE, NEWEST])
def test_every_half_is_read_and_rounded_as_torch_does(choose_isa, monkeypatch, dtype, isa):
    monkeypatch.setattr(gather_scatter, "is_torch_fast", lambda *_, **__: False)
    choose_isa(isa)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).reshape(-1, 64)
    assert torch.equal(alone(every).nan_to_num(7), every.nan_to_num(7) + 0)
    scale = torch.linspace(0.3, 3, every.numel()).reshape_as(every)
    pair = torch.cat([every, (every.float() * scale).to(dtype)])
    index = torch.arange(len(every)).repeat(2)
    expected = (pair[: len(every)].float() + pair[len(every) :].float()).to(dtype)
    out = scatter_sum(pair, index, 0, dim_size=len(every))
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(7), expected.nan_to_num(7))


def alone(rows):
    """Sum each row alone."""
    return scatter_sum(rows, torch.arange(len(rows)), 0, dim_size=len(rows))


def test_a_library_of_other_sources_is_not_called_but_explained(tmp_path, monkeypatch):
    if not library.is_available():
        pytest.skip(library.reason())
    (tmp_path / "collate.cpp").write_text("// of tomorrow")
    monkeypatch.setattr(library, "_CSRC", tmp_path)
    loaded, why = library._open.__wrapped__()
    assert loaded is None
    assert "built from other sources" in why


def test_switching_off_is_undone():
    before = library.is_available()
    with library.without_native():
        assert not library.is_available()
        assert library.function("popgeo_plan", "") is None
        assert "without_native" in library.reason()
    assert library.is_available() == before


def test_the_plan_is_thread_safe(generator):
    from concurrent.futures import ThreadPoolExecutor

    index = torch.randint(500, (20_000,), generator=generator)
    expected = ScatterPlan.from_index(index, 500)
    with ThreadPoolExecutor(4) as pool:
        for plan in pool.map(lambda _: ScatterPlan.from_index(index, 500), range(16)):
            assert torch.equal(plan.perm, expected.perm)


def test_the_fuzzer_explains_itself():
    run = subprocess.run([sys.executable, str(FUZZ), "--help"], capture_output=True, text=True, check=True)
    assert "AddressSanitizer" in run.stdout


def test_numbers_at_odd_addresses_give_the_same_bits(native):
    def odd(tensor):
        data = bytes(tensor.reshape(-1).view(torch.uint8).numpy())
        made = torch.frombuffer(bytearray(b"_" + data), dtype=tensor.dtype, offset=1).view(tensor.shape)
        assert made.data_ptr() % 2
        return made

    src, dst = torch.arange(9) % 4, torch.arange(9) * 7 % 5
    x, w = torch.randn(4, 16), torch.randn(9, 16)
    assert torch.equal(cfconv(odd(x), odd(w), odd(src), odd(dst), 5), cfconv(x, w, src, dst, 5))
    assert torch.equal(scatter_sum(odd(w), odd(dst), 0, dim_size=5), scatter_sum(w, dst, 0, dim_size=5))
    assert torch.equal(ScatterPlan.from_index(odd(dst), 5).rowptr, ScatterPlan.from_index(dst, 5).rowptr)
    graph, other = (CompressedGraph.from_edge_index(place(torch.stack([src, dst])), 5) for place in (odd, torch.clone))
    assert torch.equal(graph.col, other.col)
    with pytest.raises(ValueError, match="contiguous, aligned"):
        CompressedGraph(rowptr=odd(graph.rowptr), col=graph.col, num_cols=5, perm=graph.perm)
