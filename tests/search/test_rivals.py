"""Plans of several searches in one order, against sorting them by hand."""

import numpy as np
import pytest

from planner.domain.request import SpaceRequest
from planner.search.choice import distinct_plans, front_of, nearest_of, ranked
from planner.search.exhaustive import Asked, Outcome
from planner.search.ranking import fewest_first
from planner.search.search import search
from tests.search.conftest import SyntheticMachine

REQUEST = SpaceRequest(24, tolerance_sync=0.5, top=5, pareto=True)
SLOW, FAST = SyntheticMachine(compute_s=0.09), SyntheticMachine(compute_s=0.05, update_s=0.11)


def searched(machine: SyntheticMachine) -> Outcome:
    return search(Asked(REQUEST, machine.limits(), machine, machine.order(REQUEST)), keep=100, pareto=True)


@pytest.mark.parametrize("machines", [(SLOW, FAST), (FAST, SLOW), (FAST, FAST, SLOW)])
def test_plans_of_searches_are_in_one_order(machines: tuple[SyntheticMachine, ...]) -> None:
    order = FAST.order(REQUEST)
    parts = {}
    for at, machine in enumerate(machines):
        best = searched(machine).best
        assert best is not None
        parts[at] = distinct_plans(order, best)
    ranking = ranked(order, parts)
    values = order.values(ranking.priced).tolist()
    by_hand = sorted(
        (float(value), at, row)
        for at, part in parts.items()
        for row, value in enumerate(order.values(part.priced).tolist())
    )
    assert values == [value for value, _, _ in by_hand]
    assert len(ranking.search) == len(ranking.precisions) == len(values)
    for row, at in enumerate(ranking.search):
        one = ranking.priced.configurations.one(row)
        assert machines[at].one(one)["epoch_s"] == pytest.approx(float(ranking.priced.predictions.epoch_s[row]))
    if machines[0] is machines[1]:  # of equal plans that of the first search comes first
        alike = [at for at in ranking.search if at < 2]
        assert alike == [0, 1] * (len(alike) // 2)


def test_the_nearest_of_searches_are_the_nearest_of_each_mode_and_side() -> None:
    """Multiples of 10 and of 9 around 24: 20 below and 27 above, each of another search; asynchronous of both."""
    request = SpaceRequest(
        24, tolerance_async=0.001, asked={"mode": ("sync", "async"), "nodes": (1,), "sub_batch": (1,)}
    )
    order, parts, machines = FAST.order(request), {}, {0: SLOW, 1: FAST}
    for at, (machine, gpus) in {0: (SLOW, 10), 1: (FAST, 9)}.items():
        one = request.changed(gpus_per_node=(gpus,))
        outcome = search(Asked(one, machine.limits(gpus=gpus), machine, order), keep=1)
        assert outcome.best is None
        assert outcome.nearest is not None
        parts[at] = distinct_plans(order, outcome.nearest)
    plans = nearest_of(order, parts, request)
    found = [(plans.priced.configurations.one(row), at) for row, at in enumerate(plans.search)]
    means = [machines[at].one(one)["mini_batch_mean"] for one, at in found]
    assert [(one.mode, at) for one, at in found[:2]] == [("sync", 0), ("sync", 1)]
    assert means[:2] == [20, 27]
    below = [
        float(mean)
        for part in parts.values()
        for mean, mode in zip(part.priced.predictions.mini_batch_mean, part.priced.configurations.mode, strict=True)
        if mode == 1
    ]
    assert means[2:] == [pytest.approx(max(below))]
    assert nearest_of(order, {0: parts[0]}, request).search == (0,) * len(parts[0].precisions)


def test_the_front_of_fronts_is_that_of_all_plans() -> None:
    order = FAST.order(REQUEST)
    fronts = {}
    for at, machine in enumerate((SLOW, FAST)):
        pareto = searched(machine).pareto
        assert pareto is not None
        fronts[at] = distinct_plans(order, pareto)
    front = front_of(order, fronts)
    points = [
        (float(value), int(gpus), float(distance))
        for one in fronts.values()
        for value, gpus, distance in zip(
            order.values(one.priced), one.priced.configurations.gpus, order.distances(one.priced), strict=True
        )
    ]
    alone = {
        one for one in points if not any(other != one and all(np.array(other) <= np.array(one)) for other in points)
    }
    priced = front.priced
    found = zip(order.values(priced), priced.configurations.gpus, order.distances(priced), strict=True)
    assert {(float(value), int(gpus), float(distance)) for value, gpus, distance in found} == alone


def test_the_fewest_devices_come_first_where_that_is_asked() -> None:
    order = FAST.order(REQUEST)
    best = searched(FAST).best
    assert best is not None
    gpus = ranked(fewest_first(order), {0: distinct_plans(order, best), 1: distinct_plans(order, best)})
    devices = gpus.priced.configurations.gpus
    assert (np.diff(devices) >= 0).all()
