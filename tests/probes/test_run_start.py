"""What a run starts with may take what is kept for the fit; what stays disturbed is corrected."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.domain.kernels import FORWARD
from planner.domain.network import Point
from planner.probes.run import Goal, Run, continued

MakeBench = Callable[..., Any]
POINTS = tuple(Point("gemm", FORWARD, {"m": m, "n": 8, "k": 8, "batch": 1}) for m in range(8, 108))


class FirstTwenty:
    """Starts with twenty points, and wants no others before all."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points

    def start(self) -> list[str]:
        """Return the names of the first twenty."""
        return [point.name for point in self.points[:20]]

    def learn(self, timed: Mapping[str, float]) -> float:
        """Return an error that no budget ends at."""
        return 1 / max(len(timed), 1)

    def choose(self, _left: Collection[str], _seconds: float, _most_s: float) -> list[str]:
        """Return none."""
        return []


@pytest.mark.parametrize(("budget_s", "left"), [(1.0, 10), (1.9, 1), (2.6, 0), (8.0, 0)])
def test_points_of_the_start_may_take_what_is_kept_for_all_others(
    budget_s: float, left: int, fake_bench: MakeBench
) -> None:
    """Nothing is kept before they are measured; then as much as so many points ask for."""
    asked: list[int] = []

    def later_s(timed: int) -> float:
        asked.append(timed)
        return max(budget_s - 1.0 - 0.02 * timed, 0.0)

    bench, goal = fake_bench(), Goal(FirstTwenty)
    run = Run(bench, POINTS, budget_s, continued(None, {}, ()), goal=goal, resume=None, progress=None, later_s=later_s)
    assert len(run.missing) == pytest.approx(left, abs=1)
    assert {point.name for point in run.missing} | set(bench.timed) >= set(FirstTwenty(POINTS).start())
    assert bench.now <= budget_s + 0.2
    if run.missing:
        assert asked == []
    else:
        assert min(asked) == 20
        assert max(len(bench.timed), 20) == pytest.approx(max((budget_s - 1.0) / 0.125, 20), abs=2)


def test_a_start_that_an_earlier_run_measured_is_not_measured_again(fake_bench: MakeBench, tmp_path: Path) -> None:
    file, names = tmp_path / "here.jsonl", {point.name for point in POINTS}
    for budget_s, missing in ((1.2, True), (4.0, False)):
        run = Run(
            fake_bench(), POINTS, budget_s, continued(file, {}, names), goal=Goal(FirstTwenty), resume=file,
            progress=None, later_s=lambda _timed: 3.0,
        )  # fmt: skip
        assert bool(run.missing) == missing
    assert len(run.timed) > 20


def test_what_stays_disturbed_is_corrected_by_the_reference(fake_bench: MakeBench) -> None:
    """By a power of it that calls follow it by: half of what they are slower by is left of three times as slow."""
    bench = fake_bench(slow=(5.0, 1e9))
    samples = Run(bench, POINTS, 11.0, continued(None, {}, ()), resume=None, progress=None).samples("", {})
    disturbed = samples.text["notes"] != ""
    factor = samples.time_s / (1e-6 * samples.number["m"])
    assert factor[~disturbed] == pytest.approx(1.0)
    slow = disturbed & (factor > 1)  # not what was timed right before, in a stretch whose end was disturbed
    assert slow.sum() > 0.8 * disturbed.sum() > 10
    assert factor[slow] == pytest.approx(3.0**0.4)
