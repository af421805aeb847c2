"""Rates of the links between IPUs, and times of messages and rings over them.

A machine (IPU-M2000, Bow-2000) holds 4 IPUs. Up to 16 machines are a pod of 64 IPUs, joined by IPU-Links to a torus of
two dimensions. Gateways join pods (IPU-POD64 and IPU-POD128 data sheets). IPUs are numbered machine by machine.
"""

import itertools
from collections.abc import Sequence

from popgeo.ipu.target import IpuTarget

IPUS_OF_A_MACHINE, IPUS_OF_A_POD = 4, 64
# A pair of IPUs on two boards reached 27.7 GB/s, a pair on one board 55: arXiv:1912.03413, first generation. Rates of
# the second generation are not published.
BETWEEN_MACHINES_BYTES_PER_SECOND = 28e9
# Two gateway links of 100 gigabit per second each leave a machine, for its four IPUs together: Bow-2000 data sheet.
# Ethernet carries this rate in both directions at the same time.
BETWEEN_PODS_BYTES_PER_SECOND = 2 * 100e9 / 8 / IPUS_OF_A_MACHINE
HOP_SECONDS = 0.16e-6  # further latency for each machine on the way: arXiv:1912.03413


def link_rate(sender: int, receiver: int, target: IpuTarget) -> float:
    """Return the bytes per second from one IPU to another.

    Example:
        >>> bow = IpuTarget.bow()
        >>> [f"{link_rate(0, other, bow):.3g}" for other in (3, 4, 63, 64)]
        ['5.5e+10', '2.8e+10', '2.8e+10', '6.25e+09']
    """
    if sender // IPUS_OF_A_MACHINE == receiver // IPUS_OF_A_MACHINE:
        return target.link_bytes_per_second
    if sender // IPUS_OF_A_POD == receiver // IPUS_OF_A_POD:
        return BETWEEN_MACHINES_BYTES_PER_SECOND
    return BETWEEN_PODS_BYTES_PER_SECOND


def message_seconds(nbytes: float, sender: int, receiver: int, target: IpuTarget) -> float:
    """Return the seconds from the start of a message until the receiving IPU has all of it.

    Example:
        >>> bow = IpuTarget.bow()
        >>> message_seconds(55_000, 0, 1, bow) * 1e6  # 0.55 us of latency, then 55 kB at 55 GB/s
        1.55
    """
    machines = abs(sender // IPUS_OF_A_MACHINE - receiver // IPUS_OF_A_MACHINE)
    latency = target.link_seconds + HOP_SECONDS * max(0, machines - 1)
    return latency + nbytes / link_rate(sender, receiver, target)


def ring_seconds(nbytes: float, ring: Sequence[int], target: IpuTarget, *, rounds: int = 2) -> float:
    """Return the seconds of a collective over IPUs in a ring.

    One share of the tensor is sent at a time. All IPUs send at once, so the slowest link of the ring sets the pace of a
    turn. There is no other traffic on the links. Through gateways, half of each share goes around the ring in the other
    direction.

    Args:
        nbytes: Bytes that each IPU holds.
        ring: The IPUs in the order of the ring; the last and the first IPU are assumed to be neighbors.
        target: One IPU.
        rounds: Times around the ring: 1 for a reduce-scatter or an all-gather, 2 for an all-reduce.

    Example:
        >>> bow = IpuTarget.bow()
        >>> ring_seconds(1e6, [0], bow)
        0.0
        >>> ring_seconds(1e6, range(4), bow) < ring_seconds(1e6, range(0, 16, 4), bow)
        True
    """
    turns = rounds * (len(ring) - 1)
    part = nbytes / len(ring)
    hops = [
        message_seconds(part if a // IPUS_OF_A_POD == b // IPUS_OF_A_POD else part / 2, a, b, target)
        for a, b in itertools.pairwise(ring)
    ]
    return turns * max(hops, default=0.0)


def replica_ring(ipu: int, ipus_of_a_replica: int, replicas: int) -> range:
    """Return the IPUs with the same part of a model in each replica; the IPUs of a replica have consecutive numbers.

    Example:
        >>> list(replica_ring(1, ipus_of_a_replica=4, replicas=4))
        [1, 5, 9, 13]
    """
    return range(ipu, ipu + ipus_of_a_replica * replicas, ipus_of_a_replica)


def streaming_rate(num_ipus: int, target: IpuTarget) -> float:
    """Return the bytes per second of each IPU if several IPUs read streaming memory at the same time.

    Example:
        >>> bow = IpuTarget.bow()
        >>> streaming_rate(1, bow) / streaming_rate(16, bow)
        4.0
    """
    return target.streaming_bytes_per_second * IPUS_OF_A_MACHINE / min(num_ipus, IPUS_OF_A_MACHINE)
