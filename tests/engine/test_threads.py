"""A step finds the number of threads that serves it, leaves one that has become slow, and gives the caller's back."""

from collections.abc import Callable, Iterator

import pytest
import torch

from popgeo.engine.threads import ThreadChoice


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


class Machine:
    """A clock that goes on by what a call costs with the threads that it has."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.cost, self.now, self.used = cost, 0.0, list[int]()
        self.choice = ThreadChoice(clock=lambda: self.now)

    def call(self, times: int) -> list[int]:
        for _ in range(times):
            with self.choice.of_a_call():
                number = torch.get_num_threads()
                self.used.append(number)
                self.now += self.cost(number)
            assert torch.get_num_threads() == 4
        return self.used[-times:]


def test_numbers_are_tried_upwards_as_long_as_each_is_faster():
    machine = Machine(lambda n: 0.1 / n)
    assert machine.call(8) == [1, 1, 1, 2, 2, 4, 4, 4]
    assert machine.choice.picked == 4
    machine = Machine(lambda n: {1: 0.1, 2: 0.06, 4: 0.058}[n])
    assert machine.call(9) == [1, 1, 1, 2, 2, 4, 4, 2, 2]
    assert machine.choice.picked == 2


def test_a_second_thread_that_costs_twenty_times_as_much_is_tried_once():
    machine = Machine(lambda n: 0.05 if n == 1 else 1.2)
    assert machine.call(1000).count(2) == 1
    assert machine.choice.picked == 1
    assert machine.call(3000).count(2) <= 3  # and again as rarely as it costs
    assert machine.now < 1.1 * 4000 * 0.05


def test_a_short_step_stays_with_one_thread_and_tries_nothing():
    machine = Machine(lambda n: 1e-3 / n)
    assert set(machine.call(50)) == {1}
    assert machine.choice.picked == 1


def test_a_core_that_becomes_busy_is_noticed_and_one_that_becomes_idle_too():
    machine = Machine(lambda n: 0.1 / n)
    machine.call(20)
    machine.cost = lambda n: 0.1 if n == 1 else 2.0
    assert machine.call(3)[1:] == [1, 1]
    assert machine.choice.picked == 1
    start = machine.now
    assert 4 in machine.used
    machine.call(2000)
    assert machine.now - start < 1.2 * 2000 * 0.1
    machine.cost = lambda n: 0.1 / n
    machine.call(3000)
    assert machine.choice.picked in (2, 4)


def test_a_number_that_is_told_is_used_from_the_first_call():
    choice = ThreadChoice(told=3)
    for _ in range(2):
        with choice.of_a_call():
            assert torch.get_num_threads() == 3
    assert choice.picked == 3


def test_the_callers_number_is_the_most_and_one_leaves_nothing_to_try():
    torch.set_num_threads(1)
    choice = ThreadChoice()
    for _ in range(3):
        with choice.of_a_call():
            assert torch.get_num_threads() == 1
    assert choice.picked == 1


def test_the_callers_number_comes_back_after_an_error():
    choice = ThreadChoice(told=1)
    with pytest.raises(KeyError), choice.of_a_call():
        raise KeyError
    assert torch.get_num_threads() == 4


def test_of_two_threads_both_are_tried_and_the_better_is_kept():
    now = 0.0
    choice = ThreadChoice(clock=lambda: now)
    torch.set_num_threads(2)
    used = []
    for _ in range(6):
        with choice.of_a_call():
            used.append(torch.get_num_threads())
            now += 0.1 / used[-1]
    assert used == [1, 1, 1, 2, 2, 2]
    assert choice.picked == 2
