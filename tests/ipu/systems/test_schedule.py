"""Timelines of pipelines: lengths in closed form, and the rules of every timeline."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.ipu.report.timeline import most_in_flight, num_depths, turns_of
from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.schedule import timed_passes

every_schedule = pytest.mark.parametrize("schedule", Schedule)


def length(tasks):
    return max(task.end for task in tasks)


def test_a_turn_in_lock_step_lasts_as_long_as_its_slowest_ipu():
    # Stage 0 forward | 0 forward, 1 both | the same | 1 both, 0 backward | 0 backward
    tasks = timed_passes([2.0, 1.0], [1.0, 5.0], [0, 1], 3, Schedule.LOCK_STEP)
    turns = turns_of(tasks, 2, 3)
    assert [turn.end - turn.start for turn in turns] == [2.0, 6.0, 6.0, 6.0, 1.0]
    assert [turn.ipu for turn in turns] == [0, 1, 1, 1, 0]
    assert length(tasks) == 21.0
    # Without turns, stage 1 never waits for a turn of stage 0.
    assert length(timed_passes([2.0, 1.0], [1.0, 5.0], [0, 1], 3, Schedule.ONE_F_ONE_B)) == 21.0


def test_an_ipu_with_the_first_and_the_last_stage_takes_both_in_each_turn():
    tasks = timed_passes([1.0, 2.0, 2.0], [1.0, 2.0, 3.0], [0, 1, 0], 8, Schedule.LOCK_STEP)
    turns = turns_of(tasks, 3, 8)
    assert len(turns) == 8 + 2 * 3 - 2  # popart's notes on pipelining: G + P - 1 cycles of P = 5 pipeline stages
    assert {turn.end - turn.start for turn in turns[4:8]} == {1.0 + 2.0 + 3.0 + 1.0}
    assert {turn.ipu for turn in turns[4:8]} == {0}
    assert num_depths(3, trains=True) == 5


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_in_lock_step_all_ipus_begin_a_turn_at_once_and_nobody_overtakes(data):
    stages, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    times = st.lists(st.integers(1, 5).map(float), min_size=stages, max_size=stages)
    tasks = timed_passes(data.draw(times), data.draw(times), range(stages), count, Schedule.LOCK_STEP)
    turns = turns_of(tasks, stages, count)
    assert [turn.end for turn in turns[:-1]] == [turn.start for turn in turns[1:]]
    starts = {turn.start for turn in turns}
    for task in tasks:
        if not task.backward:
            assert task.start in starts
    # PopART keeps 2 x (stages to the end) + 1 micro-batches, if there are that many.
    expected = [min(count, 2 * (stages - 1 - stage) + 1) for stage in range(stages)]
    assert [most_in_flight(tasks, stage, True) for stage in range(stages)] == expected


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 5), (2, 2), (4, 4), (4, 16), (8, 64)])
def test_even_stages_take_as_long_as_papers_say(stages, micro_batches):
    forward, backward, ipus = [1.0] * stages, [2.0] * stages, range(stages)
    filled = (micro_batches + stages - 1) * 3  # both GPipe and 1F1B: m + s - 1 turns
    assert length(timed_passes(forward, backward, ipus, micro_batches, Schedule.ONE_F_ONE_B)) == filled
    assert length(timed_passes(forward, backward, ipus, micro_batches, Schedule.GROUPED)) == filled
    assert length(timed_passes(forward, backward, ipus, micro_batches, Schedule.LOCK_STEP)) == filled
    assert length(timed_passes(forward, backward, ipus, micro_batches, Schedule.SHARDED)) == micro_batches * stages * 3
    assert length(timed_passes(forward, [], ipus, micro_batches)) == micro_batches + stages - 1


def test_one_stage_alternates_and_others_keep_fewer_micro_batches_the_later_they_are():
    tasks = timed_passes([1.0] * 4, [2.0] * 4, range(4), 8, Schedule.ONE_F_ONE_B)
    assert [most_in_flight(tasks, stage, True) for stage in range(4)] == [4, 3, 2, 1]
    last = [task.backward for task in tasks if task.stage == 3]
    assert last == [False, True] * 8
    grouped = timed_passes([1.0] * 4, [2.0] * 4, range(4), 8, Schedule.GROUPED)
    assert [most_in_flight(grouped, stage, True) for stage in range(4)] == [8] * 4
    sharded = timed_passes([1.0] * 4, [2.0] * 4, range(4), 8, Schedule.SHARDED)
    assert [most_in_flight(sharded, stage, True) for stage in range(4)] == [1] * 4


def test_the_slowest_stage_sets_the_pace():
    tasks = timed_passes([1.0, 5.0, 1.0], [1.0, 5.0, 1.0], range(3), 50)
    assert length(tasks) == 1 + 50 * 10 + 1  # the others work at the same time, except at the start and the end


@every_schedule
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_nothing_overlaps_and_nothing_starts_before_what_it_needs(schedule, data):
    stages = data.draw(st.integers(1, 5))
    times = st.lists(st.integers(0, 5).map(float), min_size=stages, max_size=stages)
    forward, backward = data.draw(times), data.draw(times)
    ipus = data.draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))
    count = data.draw(st.integers(1, 6))
    tasks = timed_passes(forward, backward, ipus, count, schedule)
    assert len(tasks) == 2 * stages * count == len({(t.stage, t.micro_batch, t.backward) for t in tasks})
    ends = {(t.stage, t.micro_batch, t.backward): t.end for t in tasks}
    for task in tasks:
        assert task.ipu == ipus[task.stage]
        if task.backward:
            before = (task.stage, False), (min(task.stage + 1, stages - 1), task.stage + 1 < stages)
        else:
            before = ((task.stage - 1, False),) if task.stage else ()
        assert all(ends[stage, task.micro_batch, kind] <= task.start for stage, kind in before)
    for ipu in set(ipus):
        own = sorted((t.start, t.end) for t in tasks if t.ipu == ipu)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(own))
