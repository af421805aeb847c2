"""A tensor product of e3nn summed over edges in one pass: values, first and second derivatives are the same."""

import os
import warnings
from types import SimpleNamespace

import pytest
import torch

from popgeo.potentials.tensor_product import SumOfProducts

NUM_NODES, NUM_EDGES = 9, 40


class Product(torch.nn.Module):
    """A product like e3nn's, of scalars and vectors, with dot, scale and cross products."""

    instructions = tuple(
        SimpleNamespace(i_in1=a, i_in2=b, i_out=out, connection_mode="uvu", has_weight=True)
        for a, b, out in ((0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3), (1, 1, 4))
    )

    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        self.irreps_in1, self.irreps_in2 = irreps(channels, 1, 3), irreps(1, 1, 3)
        self.irreps_out, self.weight_numel = irreps(channels, 1, 3, 3, 1, 3), 5 * channels
        self.register_buffer("scale", torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x, y, w):
        s, v = x.split([self.channels, 3 * self.channels], dim=1)
        v, along = v.reshape(len(v), -1, 3), y[:, None, 1:]
        w = w.reshape(len(w), 5, -1).to(x)
        scale = self.scale.to(x)
        parts = [
            w[:, 0] * s * y[:, :1],
            w[:, 1, :, None] * s[:, :, None] * along,
            w[:, 2, :, None] * v * y[:, None, :1],
            w[:, 3] * (v * along).sum(2) * scale,
            w[:, 4, :, None] * torch.linalg.cross(v, along.expand_as(v)),
        ]
        return torch.cat([part.flatten(1) for part in parts], dim=1)


class Irreps(list):
    """A list of blocks with the length of a row."""

    @property
    def dim(self):
        return sum(block.dim for block in self)


class Block(SimpleNamespace):
    """Several channels of one degree."""

    def __iter__(self):
        return iter((self.mul, self.ir))


def irreps(channels, *sizes):
    return Irreps(Block(mul=channels, ir=SimpleNamespace(dim=size), dim=channels * size) for size in sizes)


def drawn(product, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(0, NUM_NODES, (NUM_EDGES,), generator=generator) for _ in "ab")
    sizes = (NUM_NODES, product.irreps_in1.dim), (NUM_EDGES, product.irreps_in2.dim), (NUM_EDGES, product.weight_numel)
    return src, dst, [torch.randn(*s, generator=generator, dtype=dtype, requires_grad=True) for s in sizes]


def derivatives(function, inputs):
    """Return the value, gradients of a function of it, and second gradients."""
    out = function(*inputs)
    first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(one.square().sum() for one in first) + out.cos().sum(), inputs)
    return [out, *first, *second]


@pytest.mark.parametrize("channels", [1, 5, 16, 37])
def test_values_and_derivatives_of_first_and_second_order_are_those_of_gather_product_and_sum(native, channels):
    product = Product(channels)
    src, dst, inputs = drawn(product)
    sums = SumOfProducts(product)

    def plain(x, y, w):
        return torch.zeros(NUM_NODES, product.irreps_out.dim).double().index_add(0, dst, product(x[src], y, w))

    expected = derivatives(plain, inputs)
    for one, other in zip(derivatives(lambda x, y, w: sums(x, y, w, src, dst), inputs), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-11)


def test_bits_do_not_depend_on_the_number_of_threads():
    product = Product(16)
    src, dst, inputs = drawn(product, torch.float32)
    sums, found, before = SumOfProducts(product), [], torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(derivatives(lambda x, y, w: sums(x, y, w, src, dst), inputs))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_no_edges_give_zeros_and_an_index_outside_is_refused(native):
    product = Product(2)
    src, dst, (x, y, w) = drawn(product)
    sums = SumOfProducts(product)
    assert not sums(x, y[:0], w[:0], src[:0], dst[:0]).any()
    with pytest.raises(ValueError, match=r"dst|index|src"):
        sums(x, y, w, src, dst + NUM_NODES)


def test_what_is_no_sum_of_weighted_paths_is_refused():
    product = Product(2)
    mixed = SimpleNamespace(**{**vars(product.instructions[0]), "connection_mode": "uvw"})
    product.instructions = (mixed, *product.instructions[1:])
    with pytest.raises(ValueError, match="Path 0 is uvw with 1 channels of edges"):
        SumOfProducts(product)
    product.instructions = Product.instructions[:4]  # the product has a path more than it says
    with pytest.raises(ValueError, match="not the sum of its paths"):
        SumOfProducts(product)


def test_e3nns_own_product_is_read_off(monkeypatch):
    monkeypatch.setitem(os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # what e3nn 0.4 needs of torch
    o3 = pytest.importorskip("e3nn.o3", reason="needs e3nn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = o3.Irreps("4x0e+4x1o+4x1o+4x1e+4x2e+4x1o")
        paths = [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3), (1, 1, 4), (1, 2, 5)]
        paths = [(*path, "uvu", True) for path in paths]
        product = o3.TensorProduct("4x0e+4x1o", "0e+1o+2e", out, paths, shared_weights=False, internal_weights=False)
    src, dst, inputs = drawn(product, torch.float32)
    expected = torch.zeros(NUM_NODES, out.dim).index_add(0, dst, product(inputs[0][src], *inputs[1:]))
    torch.testing.assert_close(SumOfProducts(product)(*inputs, src, dst), expected, rtol=1e-5, atol=1e-5)
