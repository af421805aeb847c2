"""Links between IPUs: messages and rings worked out by hand."""

import pytest

from popgeo.ipu.cost.links import (
    BETWEEN_MACHINES_BYTES_PER_SECOND,
    BETWEEN_PODS_BYTES_PER_SECOND,
    link_rate,
    message_seconds,
    replica_ring,
    ring_seconds,
    streaming_rate,
)
from popgeo.ipu.target import IpuTarget

BOW = IpuTarget.bow()


@pytest.mark.parametrize(("other", "rate"), [(3, 55e9), (4, 28e9), (63, 28e9), (64, 6.25e9)])
def test_a_link_is_as_fast_as_what_it_joins(other, rate):
    assert link_rate(0, other, BOW) == link_rate(other, 0, BOW) == rate


@pytest.mark.parametrize(
    ("one", "other", "rate"),
    [(4, 7, 55e9), (3, 4, 28e9), (7, 8, 28e9), (60, 63, 55e9), (63, 64, 6.25e9), (64, 127, 28e9), (127, 128, 6.25e9)],
)
def test_a_machine_holds_four_ipus_and_a_pod_64_wherever_they_begin(one, other, rate):
    assert link_rate(one, other, BOW) == rate


def test_a_message_has_no_hops_on_its_way_within_a_machine_or_to_the_next():
    assert message_seconds(0, 0, 3, BOW) == message_seconds(0, 4, 0, BOW) == 0.55e-6
    assert message_seconds(0, 9, 1, BOW) == pytest.approx(0.55e-6 + 0.16e-6)


def test_a_message_further_away_has_more_hops_on_its_way():
    assert message_seconds(28e3, 0, 4, BOW) == pytest.approx(0.55e-6 + 1e-6)
    assert message_seconds(28e3, 0, 12, BOW) == pytest.approx(0.55e-6 + 2 * 0.16e-6 + 1e-6)


def test_a_ring_goes_round_twice_less_two_turns_at_the_pace_of_its_slowest_link():
    assert ring_seconds(4e6, range(4), BOW) == pytest.approx(6 * (0.55e-6 + 1e6 / 55e9))
    # Eight replicas of one IPU: one link of the ring joins two machines.
    assert ring_seconds(8e6, range(8), BOW) == pytest.approx(14 * (0.55e-6 + 1e6 / BETWEEN_MACHINES_BYTES_PER_SECOND))
    two_pods = ring_seconds(1e9, replica_ring(0, 64, 2), BOW)
    assert two_pods == pytest.approx(1e9 / 2 / BETWEEN_PODS_BYTES_PER_SECOND, rel=1e-3)  # half each way round


def test_replicas_one_after_the_other_have_their_alike_parts_in_one_ring():
    assert list(replica_ring(3, ipus_of_a_replica=8, replicas=2)) == [3, 11]
    assert ring_seconds(1e6, replica_ring(3, 8, 1), BOW) == 0.0


def test_four_ipus_of_a_machine_share_its_streaming_memory():
    assert [streaming_rate(n, BOW) for n in (1, 2, 4, 16)] == [20e9, 10e9, 5e9, 5e9]
