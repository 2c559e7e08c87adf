"""A run that was slow throughout, which its own reference cannot show: told by earlier runs and stolen time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner.domain.calibration import Calibration
from planner.domain.samples import FREE_CIRCUMSTANCES
from planner.probes.bench import DISTURBED_RATIO
from planner.probes.calibrate import Measurement
from planner.sessions.values import Say
from planner.units import format_seconds

__all__ = ["LARGEST_STEAL_SHARE", "slower_than_before", "stolen", "with_doubts"]

LARGEST_STEAL_SHARE = 0.05
"""Of the wall time, taken by the host from the one thread that measures."""
REFERENCE_KEY, STEAL_KEY = "reference_s", "steal_during_s"


def with_doubts(measurement: Measurement, wall_s: float, earlier: Iterable[Calibration], say: Say) -> Measurement:
    """Return a measurement that warns of a run that was slow throughout, and say so.

    Parameters
    ----------
    measurement : Measurement
    wall_s : float
        That the run took [s].
    earlier : iterable of Calibration
        Of this machine.
    say : callable
    """
    circumstances, device = measurement.samples.circumstances, measurement.accelerator.name
    doubts = {
        "warning_slower": slower_than_before(circumstances, device, earlier),
        "warning_steal": stolen(circumstances, wall_s),
    }
    sentences = {key: sentence for key, sentence in doubts.items() if sentence}
    for sentence in sentences.values():
        say(sentence)
    return replace(measurement, samples=replace(measurement.samples, circumstances={**circumstances, **sentences}))


def slower_than_before(circumstances: Mapping[str, str], device: str, earlier: Iterable[Calibration]) -> str:
    """Return that the reference kernel was much slower than in an earlier run of the same circumstances, else ''."""
    alike = [one for one in earlier if one.accelerator == device and _is_alike(one.environment, circumstances)]
    times = [(seconds, one) for one in alike if (seconds := _number(one.environment, REFERENCE_KEY))]
    now_s = _number(circumstances, REFERENCE_KEY)
    if not times or not now_s:
        return ""
    best_s, best = min(times, key=lambda pair: pair[0])
    if now_s <= DISTURBED_RATIO * best_s:
        return ""
    return (
        f"the reference kernel took {format_seconds(now_s)} in the quiet part of this run, {now_s / best_s:.2g} times "
        f"the {format_seconds(best_s)} of calibration {best.name!r} of {best.date or 'an unknown day'} under the same "
        "circumstances: the machine was slow throughout; run it again when it is quiet"
    )


def _is_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    # Another design may have another reference kernel.
    lasting = [key for key in one.keys() & other.keys() if key not in FREE_CIRCUMSTANCES or key == "design"]
    return all(one[key] == other[key] for key in lasting)


def stolen(circumstances: Mapping[str, str], wall_s: float) -> str:
    """Return that the host took much of the CPU time during a run of ``wall_s`` seconds, else ''."""
    share = _number(circumstances, STEAL_KEY) / wall_s
    if share <= LARGEST_STEAL_SHARE:
        return ""
    return (
        f"the host took CPU time worth {share:.0%} of this run for other machines: times are too long by about as "
        "much; run it again when the host is quiet"
    )


def _number(values: Mapping[str, str], key: str) -> float:
    """Return a number; 0 where it is absent or none."""
    try:
        return float(values.get(key, "0"))
    except ValueError:
        return 0.0
