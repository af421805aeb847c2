"""A step finds the fastest number of threads, leaves a number that has become slow, and restores the caller's."""

import itertools
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
    """A clock that advances by the cost of a call with its number of threads."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.cost, self.now, self.used = cost, 0.0, list[int]()
        self.choice = ThreadChoice(clock=lambda: self.now)

    def call(self, times: int) -> list[int]:
        for _ in range(times):
            with self.choice:
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


def test_a_number_that_is_given_is_used_from_the_first_call():
    choice = ThreadChoice(number=3)
    for _ in range(2):
        with choice:
            assert torch.get_num_threads() == 3
    assert choice.picked == 3


def test_the_callers_number_is_the_most_and_one_leaves_nothing_to_try():
    torch.set_num_threads(1)
    choice = ThreadChoice()
    for _ in range(3):
        with choice:
            assert torch.get_num_threads() == 1
    assert choice.picked == 1


def test_the_callers_number_comes_back_after_an_error():
    choice = ThreadChoice(number=1)
    with pytest.raises(KeyError), choice:
        raise KeyError
    assert torch.get_num_threads() == 4


def test_of_two_threads_both_are_tried_and_the_better_is_kept():
    now = 0.0
    choice = ThreadChoice(clock=lambda: now)
    torch.set_num_threads(2)
    used = []
    for _ in range(6):
        with choice:
            used.append(torch.get_num_threads())
            now += 0.1 / used[-1]
    assert used == [1, 1, 1, 2, 2, 2]
    assert choice.picked == 2


class ExactMachine(Machine):
    """A clock that starts at zero for each call, so that measured costs are exact."""

    def __init__(self, cost: Callable[[int], float], most: int = 2) -> None:
        super().__init__(cost)
        self.choice = ThreadChoice(clock=self.clock)
        self.starts = False
        torch.set_num_threads(most)

    def clock(self) -> float:
        self.starts = not self.starts
        return 0.0 if self.starts else self.cost(torch.get_num_threads())

    def call(self, times: int) -> list[int]:
        for _ in range(times):
            self.starts = False
            with self.choice:
                self.used.append(torch.get_num_threads())
        return self.used[-times:]

    def runs(self, times: int) -> list[tuple[int, int]]:
        """Return the numbers of the next calls, each with its repeats in a row."""
        return [(number, len(list(alike))) for number, alike in itertools.groupby(self.call(times))]


def test_one_thread_is_tried_again_when_it_costs_no_more_than_a_fiftieth_of_the_time():
    machine = ExactMachine({1: 2.0, 2: 0.5}.get)
    # Two trials of each; then as many calls as make a fiftieth of their time more than one of them, 0.5, or than what
    # the last trial has cost more than the best, 1.5: more than 25 and 75 seconds.
    assert machine.runs(3 + 2 + 51 + 1 + 151 + 1 + 1) == [(1, 3), (2, 2 + 51), (1, 1), (2, 151), (1, 1), (2, 1)]
    assert machine.choice.picked == 2


def test_two_threads_are_tried_again_as_rarely_as_their_cost_allows():
    machine = ExactMachine({1: 1.0, 2: 3.0}.get)
    assert machine.runs(3 + 1 + 101 + 1 + 101 + 1) == [(1, 3), (2, 1), (1, 101), (2, 1), (1, 101), (2, 1)]
    machine.cost = {1: 1.0, 2: 0.5}.get
    assert machine.runs(101 + 1 + 3) == [(1, 101), (2, 4)]  # one call that is much faster is enough


def test_what_is_tried_costs_what_it_costs_more_than_the_best():
    machine = ExactMachine({1: 1.0, 2: 1.125}.get)  # within what is tolerated, and so tried twice
    # 0.125 more than one thread; a call costs 1.0, and more than 50 seconds pass.
    assert machine.runs(3 + 2 + 51 + 1 + 51 + 1) == [(1, 3), (2, 2), (1, 51), (2, 1), (1, 51), (2, 1)]


@pytest.mark.parametrize(
    ("two", "used"),
    [(1.15, [1, 1, 1, 2, 2, 1]), (1.16, [1, 1, 1, 2, 1, 1])],
    ids=["tolerated", "too much"],
)
def test_a_second_trial_follows_unless_the_first_costs_more_than_is_tolerated(two: float, used: list[int]):
    assert ExactMachine({1: 1.0, 2: two}.get).call(6) == used


@pytest.mark.parametrize(("later", "then"), [(1.15, 2), (1.16, 1)], ids=["tolerated", "too much"])
def test_two_threads_are_left_at_once_where_one_call_costs_more_than_with_one(later: float, then: int):
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    assert machine.call(10)[-1] == 2
    machine.cost = {1: 1.0, 2: later}.get
    assert machine.call(2) == [2, then]


def test_after_a_slow_call_all_larger_numbers_count_as_slow_until_they_are_tried_again():
    machine = ExactMachine({1: 1.0, 2: 0.6, 4: 0.3}.get, most=4)
    assert machine.call(8) == [1, 1, 1, 2, 2, 4, 4, 4]
    machine.cost = {1: 1.0, 2: 0.6, 4: 1.2}.get
    assert machine.call(4) == [4, 1, 1, 1]
    # 1.0 is what a trial of two threads would cost at least, and so more than 50 seconds pass.
    assert machine.runs(47 + 3) == [(1, 47), (2, 1), (4, 1), (2, 1)]


def test_what_a_number_costs_follows_its_calls_by_a_quarter_each():
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    machine.call(5)
    machine.cost = {1: 1.0, 2: 1.1}.get
    # 0.5, 0.65, 0.7625, 0.847 and then 0.910, of which 1.1 times is more than one thread costs.
    assert machine.call(6) == [2, 2, 2, 2, 1, 1]


@pytest.mark.parametrize(("one", "two", "picked"), [(1.1, 1.0, 1), (1.11, 1.0, 2), (1.0, 0.95, 1)])
def test_more_threads_must_win_by_a_tenth(one: float, two: float, picked: int):
    machine = ExactMachine({1: one, 2: two}.get)
    assert machine.call(6)[-1] == picked
    assert machine.choice.picked == picked


def test_what_takes_two_milliseconds_is_worth_more_threads_and_what_takes_less_never_is():
    assert ExactMachine(lambda n: 2e-3 / n).call(4) == [1, 1, 1, 2]
    assert ExactMachine(lambda n: 1.9e-3 / n).runs(100) == [(1, 100)]


def test_the_faster_of_two_calls_counts():
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    machine.call(2)
    machine.cost = {1: 0.4, 2: 0.5}.get
    machine.call(1)  # the second trial of one thread
    machine.cost = {1: 1.0, 2: 0.5}.get
    assert machine.call(3)[-1] == 1


def test_nothing_is_known_before_the_first_call_and_while_numbers_are_tried():
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    known = [machine.choice.picked]
    for _ in range(6):
        machine.call(1)
        known.append(machine.choice.picked)
    assert known == [None, None, None, None, None, 2, 2]


def test_a_caller_who_allows_another_number_has_all_tried_anew():
    machine = ExactMachine({1: 1.0, 2: 0.5, 4: 0.25}.get)
    machine.call(6)
    torch.set_num_threads(4)
    assert machine.call(7) == [1, 1, 2, 2, 4, 4, 4]
    torch.set_num_threads(1)
    assert machine.call(3) == [1, 1, 1]
    assert machine.choice.picked == 1
    torch.set_num_threads(2)
    assert machine.call(5) == [1, 1, 2, 2, 2]


def test_a_call_that_fails_is_not_measured():
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    machine.call(1)
    with pytest.raises(KeyError), machine.choice:
        raise KeyError
    assert machine.call(3) == [1, 1, 2]


def test_what_one_thread_costs_is_what_its_last_trial_has_cost():
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    machine.call(5)
    machine.cost = {1: 3.0, 2: 0.5}.get
    assert machine.runs(51 + 1) == [(2, 51), (1, 1)]
    machine.cost = {1: 3.0, 2: 2.0}.get
    assert machine.call(3) == [2, 2, 2]  # twice what one thread cost at first, and less than it costs now


def test_a_slow_call_of_one_thread_is_no_reason_to_try_anything():
    machine = ExactMachine({1: 1.0, 2: 3.0}.get)
    machine.call(4)
    machine.cost = {1: 1.5, 2: 3.0}.get
    machine.call(1)
    machine.cost = {1: 1.0, 2: 3.0}.get
    assert machine.runs(99 + 1) == [(1, 99), (2, 1)]  # after more than 100 seconds, of which the slow call is 1.5


def test_where_all_numbers_become_slow_the_better_one_stays():
    machine = ExactMachine({1: 1.0, 2: 0.5}.get)
    machine.call(10)
    machine.cost = {1: 5.0, 2: 2.0}.get
    assert machine.call(4) == [2, 1, 2, 2]
