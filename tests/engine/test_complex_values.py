"""Conjugate and negative marks are part of a value: in memory, in constants, in state and in files."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo import compile_forward, compile_step
from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import bind, capture
from popgeo.capture.capture_step import capture_step
from popgeo.capture.fingerprint import fingerprint
from popgeo.capture.serialize import to_bytes
from popgeo.ipu import compile

REAL = torch.linspace(-1, 2, 16).reshape(4, 4).cos()
COMPLEX = torch.complex(REAL, REAL.flip(0).sin())


def alike(made: Tensor, expected: Tensor) -> None:
    assert_close(made.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg())


def conjugates_in_place(z: Tensor) -> Tensor:
    whole = z.clone()
    whole.conj().imag.mul_(2)
    return whole


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (torch.fft.ifft, REAL),
        (torch.fft.ihfft, REAL),
        (torch.fft.hfft2, REAL),
        (torch.linalg.eigvals, REAL),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x.flip(0)).conj()), REAL),
        (lambda z: z.mH @ z, COMPLEX),
        (lambda z: z * z.conj(), COMPLEX),
        (lambda z: z.conj(), COMPLEX),
        (lambda z: (z.conj().imag * 2 + 1).relu().exp(), COMPLEX),
        (lambda z: z.conj().imag.clone(), COMPLEX),
        (lambda z: z * COMPLEX.conj()[0], COMPLEX),
        (conjugates_in_place, COMPLEX),
        (lambda x: torch._neg_view(x * 2 + 1).exp() * 2, REAL),
    ],
)
def test_complex_numbers_are_those_of_eager_code(function, x):
    alike(compile(function, [x])(x), function(x))


class Held(nn.Module):
    """Weights and a buffer with marks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("buffer", COMPLEX.clone().conj())
        self.weight = nn.Parameter(COMPLEX.clone().conj())

    def forward(self, z: Tensor) -> Tensor:
        return (self.buffer.conj() * z * self.weight.conj() + self.weight).imag + self.buffer.imag


def test_state_that_carries_a_mark_is_read_with_it():
    assert_close(compile_forward(Held())(COMPLEX), Held()(COMPLEX))


class FourierLayer(nn.Module):
    """A layer of a Fourier neural operator (arXiv:2010.08895), and a loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.spectral = nn.Parameter(torch.randn(3, 3, 4, dtype=torch.complex64) / 3)
        self.pointwise = nn.Conv1d(3, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        modes = torch.fft.rfft(x)
        low = torch.einsum("bim,iom->bom", modes[:, :, :4], self.spectral)
        rest = torch.zeros(*modes.shape[:2], modes.shape[2] - 4, dtype=modes.dtype)
        smooth = torch.fft.irfft(torch.cat([low, rest], 2), n=x.shape[2])
        return (torch.relu(smooth + self.pointwise(x)) - y).square().mean()


def test_a_fourier_neural_operator_trains_as_in_eager_code():
    x, y = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    eager, compiled = FourierLayer(), FourierLayer()
    optimizer = torch.optim.Adam(eager.parameters(), lr=0.05)
    step = compile_step(compiled, torch.optim.Adam(compiled.parameters(), lr=0.05))
    for _ in range(4):
        optimizer.zero_grad()
        loss = eager(x, y)
        loss.backward()
        optimizer.step()
        assert_close(step(x, y), loss)
    assert_close(compiled.spectral, eager.spectral)


def test_a_step_with_conjugates_is_not_kept_and_a_fingerprint_tells_them_from_what_they_are_of():
    table = COMPLEX.clone().conj()
    with pytest.raises(ValueError, match="conjugate and negative views cannot be written"):
        to_bytes(capture_step(lambda z: z * table, bind(lambda z: z, COMPLEX)))
    plain, marked = nn.Module(), nn.Module()
    plain.table, marked.table = COMPLEX, COMPLEX.conj()
    assert fingerprint(plain) != fingerprint(marked)


def test_a_conjugate_is_not_merged_with_its_base():
    graph = capture(torch.conj, Arguments.of(bind(lambda x: x, COMPLEX).signature, [COMPLEX], {})).graph
    first, second = graph.values[graph.inputs[next(iter(graph.inputs))]], graph.values[graph.outputs[0]]
    assert (first.storage, first.marks, second.marks) == (second.storage, (False, False), (True, False))
