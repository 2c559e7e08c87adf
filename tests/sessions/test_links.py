"""What is made of links that ranks measured: how a step runs beside its messages, and options that clash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import Samples
from planner.fitting.calibration import SampleOrigin, fit_calibration, fit_overlap
from planner.formats.calibration import CALIBRATION
from planner.probes.calibrate import Measurement
from planner.probes.ranks import Joined, Point, Rank, Step, Visits, rows_of
from planner.sessions.calibrate import overlap
from planner.sessions.sample_files import samples_text

Run = Callable[..., tuple[int, str, str]]
JOINED = Joined(Rank(0, 2, 0, "n", "127.0.0.1", 1), ((0, 1),), "cpu", "gloo", None, None)
SUMS = Entry(
    "collectives", "all_reduce", "", "", "gloo", "collective.cases",
    {"form": "segments", "cases": (1.0, 2.0), "breaks_1x2": ()},
    {"1x2_calls": 1e-3, "1x2_bytes_0": 1e-9, "unmeasured": 0.0},
)  # fmt: skip


def step(slowdown: float, backward_s: float) -> Step:
    """Return the step of four layers whose kernels take so many times as long beside messages, by recurrence."""
    message_s, share = 5e-3, 1 / slowdown
    end_s = 0.0
    for layer in range(4):  # a message goes out when its gradient is there, which messages before it put off
        ready_s = backward_s / 4 * (layer + 1)
        end_s = max(end_s, ready_s) + share * message_s
    whole_s = 0.01 + end_s + (1 - share) * 4 * message_s
    return Step((4_000_000,) * 4, 0.01, backward_s, whole_s)


@pytest.mark.parametrize("slowdown", [1.0, 1.13, 2.0, 10.0])
def test_steps_give_back_how_much_longer_kernels_take_beside_messages(slowdown: float) -> None:
    calibration = Calibration("links", "cpu-x", (SUMS,))
    found = overlap(calibration, [step(slowdown, 0.02), step(slowdown, 0.05)], JOINED)
    (entry,) = fit_overlap(found)
    assert entry.coefficients["beside_s"] == pytest.approx(slowdown, rel=0.05)
    hidden = float(np.mean([1 - (one.with_messages_s - 0.01 - one.backward_s) / 0.02 for one in
                            (step(slowdown, 0.02), step(slowdown, 0.05))]))  # fmt: skip
    assert entry.settings["hidden"] == pytest.approx(hidden, rel=1e-3)
    assert overlap(replace(calibration, entries=()), [step(2.0, 0.02)], JOINED) == {}
    assert fit_overlap(overlap(calibration, [], JOINED)) == ()


def test_the_samples_file_of_links_gives_back_their_calibration(run: Run) -> None:
    node = Node(2, Accelerator("cpu-x", "cpu", 2.0**34, 1e10, {"fp32": 1e11}))
    sizes = {at: Point("all_reduce", 1, 2, 2**at) for at in range(10, 20)}
    visits = Visits({point: [(1e-4 + 1e-9 * 2**at, 1e-6, 5)] for at, point in sizes.items()})
    facts = {"framework": "pytorch 2", "kernels_beside_messages": "1.5", "messages_hidden": "0.7"}
    samples = Samples.from_rows(rows_of(JOINED, visits, "cpu-x"), facts)
    Path("links").mkdir()
    Path("links/one.samples.csv").write_text(samples_text(Measurement(samples, (), node.accelerator, node), "here", ""))
    assert run("calibrate", "--samples", "links", "--out", "links.json")[0] == 0
    found = CALIBRATION.read("links.json")
    fitted = fit_calibration(samples, "links", node.accelerator, node, SampleOrigin(source="here"))
    assert (found.node, found.accelerator) == (node, "cpu-x")
    assert [one.key for one in found.entries] == [one.key for one in (*fitted.entries, *fit_overlap(facts))]
    assert found.entries[0].coefficients == fitted.entries[0].coefficients
    assert found.entries[0].held_out_error == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ranks", "2"), "--ranks must be given with --links alone, got 2"),
        (
            ("--links", "--network", "mlp"),
            "--network must be left out with --links, which times no kernels, got 'mlp'",
        ),
        (("--links", "--samples", "logs"), "--links must be left out with --samples, which measures nothing"),
        (("--links", "--plan", "p.json"), "--links must be left out with --plan, which says what to measure"),
        (("--links", "--ranks", "0"), "--ranks must be a whole number from 1 to 1024, got '0'"),
        (("--threads", "0"), "--threads must be a whole number from 1 to "),
    ],
)
def test_options_of_links_clash_with_those_of_kernels(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    code, out, err = run("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err


def test_ranks_are_those_of_the_launcher(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = run("calibrate", "--device", "cpu", "--links", "--ranks", "2")
    assert (code, "--ranks must be left out where a launcher has started ranks (here 2), got 2" in err) == (2, True)
