"""Sites: made once a network, and never mixed up."""

from __future__ import annotations

from planner.domain.network import INPUT, Layer, Network
from planner.workload.graph import sites


def network(channels: int) -> Network:
    return Network("n", (3, 8, 8), (Layer("c", "convolution", (INPUT,), {"channels": channels, "kernel": 3}),))


def test_sites_are_made_once_a_network() -> None:
    one = network(4)
    assert sites(one) is sites(one)
    assert sites(network(4)) == sites(one)


def test_networks_that_come_and_go_keep_their_own_sites() -> None:
    """New networks may lie where dropped ones lay."""
    for channels in [*range(1, 40), *range(1, 40)]:
        (site,) = sites(network(channels))
        assert site.output == (channels, 6, 6)
