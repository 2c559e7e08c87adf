"""Runs that were slow throughout: told by earlier runs of the same circumstances and by stolen time."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import Samples
from planner.probes.calibrate import Measurement
from planner.sessions.measure import slower_than_before, stolen, with_doubts

CPU = Accelerator("cpu-made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
NOW = {"framework": "pytorch 2", "threads": "1", "design": "3", "load_average": "0.1", "reference_s": "0.003"}


def earlier(reference_s: str, name: str = "before", **changes: str) -> Calibration:
    environment = {**NOW, "load_average": "7", "reference_s": reference_s, **changes}
    return Calibration(name, CPU.name, (), date="2026-01-02", environment=environment)


def test_a_slower_reference_names_both() -> None:
    sentence = slower_than_before(NOW, CPU.name, [earlier("0.0028", "middling"), earlier("0.002")])
    assert (
        "took 3 ms in the quiet part of this run, 1.5 times the 2 ms of calibration 'before' of 2026-01-02" in sentence
    )


@pytest.mark.parametrize(
    "known",
    [
        [],
        [earlier("0.0026")],
        [earlier("0.004")],
        [earlier("0.001", threads="2")],
        [earlier("0.001", design="2")],
        [earlier("0.001", framework="pytorch 1")],
        [earlier("unknown")],
        [replace(earlier("0.001"), accelerator="another")],
    ],
)
def test_runs_as_quick_or_of_other_circumstances_say_nothing(known: list[Calibration]) -> None:
    assert slower_than_before(NOW, CPU.name, known) == ""


def test_without_a_reference_nothing_is_said() -> None:
    assert slower_than_before({"threads": "1"}, CPU.name, [earlier("0.001")]) == ""


@pytest.mark.parametrize(("steal_s", "share"), [("2.4", ""), ("5", "10%"), ("25.00", "50%"), ("", ""), (None, "")])
def test_stolen_time_is_said_above_a_twentieth(steal_s: str | None, share: str) -> None:
    circumstances: Mapping[str, str] = {} if steal_s is None else {"steal_during_s": steal_s}
    sentence = stolen(circumstances, 50.0)
    assert bool(sentence) == bool(share)
    assert share in sentence


def test_doubts_become_circumstances_and_are_said() -> None:
    notes: list[str] = []
    samples = Samples.from_rows([], {**NOW, "steal_during_s": "9"})
    made = with_doubts(Measurement(samples, (), CPU, Node(1, CPU)), 30.0, [earlier("0.001")], notes.append)
    found = made.samples.circumstances
    assert "3 times the 1 ms of calibration 'before'" in found["warning_slower"]
    assert "worth 30% of this run" in found["warning_steal"]
    assert notes == [found["warning_slower"], found["warning_steal"]]
    assert np.array_equal(made.samples.time_s, samples.time_s)
    quiet = Samples.from_rows([], {**NOW, "reference_s": "0.001", "steal_during_s": "0"})
    again = with_doubts(replace(made, samples=quiet), 30.0, [earlier("0.001")], notes.append)
    assert dict(again.samples.circumstances) == dict(quiet.circumstances)
    assert len(notes) == 2
