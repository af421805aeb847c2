"""Claims about the targets of potentials: energies of elements, and stress in its two forms."""

import pytest
import torch
from torch.testing import assert_close

from popgeo.nn import PaiNN, SchNet, element_energies, matrix_to_voigt, voigt_to_matrix


def test_energies_of_elements_are_found_again_and_padding_has_none():
    generator = torch.Generator().manual_seed(0)
    truth = torch.zeros(100)
    truth[[1, 6, 8]] = torch.tensor([-13.6, -1030.0, -2042.0])
    z = torch.tensor([0, 1, 6, 8])[torch.randint(4, (400,), generator=generator)]
    batch = torch.randint(40, (400,), generator=generator)
    energy = torch.zeros(40).index_add(0, batch, truth[z])
    assert_close(element_energies(z, batch, energy.unsqueeze(1)), truth, rtol=1e-4, atol=1e-3)


def test_elements_that_no_composition_tells_apart_share_the_energy():
    water = torch.tensor([8, 1, 1])
    found = element_energies(water, torch.zeros(3, dtype=torch.long), torch.tensor([-15.0]))
    assert_close(found[8] + 2 * found[1], torch.tensor(-15.0))


@pytest.mark.parametrize(
    ("z", "batch", "message"), [([100], [0], "z is 100 to 100"), ([1], [1], "structure 1, but there are 1")]
)
def test_atoms_that_cannot_be_are_refused(z, batch, message):
    with pytest.raises(ValueError, match=message):
        element_energies(torch.tensor(z), torch.tensor(batch), torch.zeros(1))


@pytest.mark.parametrize("model", [SchNet, PaiNN])
def test_a_model_begins_with_the_energies_of_its_elements(model):
    references = torch.arange(100.0)
    z, pos, batch = torch.tensor([8, 1, 1, 0]), torch.randn(4, 3), torch.tensor([0, 0, 0, 1])
    torch.manual_seed(0)
    plain = model(8, num_interactions=1)
    torch.manual_seed(0)
    referred = model(8, num_interactions=1, atomref=references)
    referred.load_state_dict(plain.state_dict(), strict=False)
    assert_close(
        referred(z, pos, batch, num_graphs=2), plain(z, pos, batch, num_graphs=2) + torch.tensor([[10.0], [0.0]])
    )
    with torch.no_grad():
        referred.atomref.weight.zero_()
    referred.reset_parameters()
    assert torch.equal(referred.atomref.weight.flatten(), references)


def test_stress_keeps_the_order_of_ase():
    stress = torch.randn(2, 6, dtype=torch.float64)
    matrix = voigt_to_matrix(stress)
    assert torch.equal(matrix, matrix.mT)
    assert torch.equal(matrix[:, 1, 2], stress[:, 3])
    assert torch.equal(matrix_to_voigt(matrix), stress)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_energies_of_whole_numbers_are_no_whole_numbers(dtype):
    z, batch = torch.tensor([1, 1, 1, 8, 8, 8], dtype=dtype), torch.tensor([0, 0, 0, 3, 3, 3], dtype=dtype)
    energies = element_energies(z, batch, torch.tensor([-10, 0, 0, -100]))
    torch.testing.assert_close(energies[[1, 8]], torch.tensor([-10 / 3, -100 / 3]))


@pytest.mark.parametrize("shape", [(9,), (3, 3), (2, 9), ()])
def test_stress_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match="Voigt's order has 6 entries"):
        voigt_to_matrix(torch.zeros(shape))
    if shape != (3, 3):
        with pytest.raises(ValueError, match=r"a matrix is \[..., 3, 3\]"):
            matrix_to_voigt(torch.zeros(shape))
