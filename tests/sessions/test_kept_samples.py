"""What ``planner calibrate`` measured, kept beside the calibration: it gives the same calibration again."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import Samples, TimedStep
from planner.formats.calibration import CALIBRATION
from planner.formats.samples import read_samples, write_samples
from planner.networks.zoo import build
from planner.probes.calibrate import Measurement
from planner.probes.layer_points import layer_points
from planner.probes.steps import probe_networks
from planner.sessions.sample_files import samples_path
from planner.workload.calls import distinct_calls

Run = Callable[..., tuple[int, str, str]]
Instruments = dict[str, Any]
CPU = Accelerator("cpu-made-up", "cpu", 8 * 2.0**30, 1.3e10, {"fp32": 1.23e11}, source="made up")
NODE = Node(1, CPU, 8 * 2.0**30, 4)
MLP = build("mlp", {})
CIRCUMSTANCES = {"framework": "pytorch 9.9", "threads": "1", "contained": "bias", "warning_disturbed": "a bad hour"}


def rows(factor: float) -> list[Mapping[str, Any]]:
    """Return calls of a network, and shapes of products and copies, with times that fall on no line."""
    own: list[Mapping[str, Any]] = [
        {"kind": p.kind, "direction": p.direction, "precision": "fp32", "device": CPU.name, "library": "pytorch",
         **p.work, "call": p.call.name, "sub_batch": p.sub_batch, "time_s": factor * 1e-4 * (1 + p.sub_batch / 3),
         "spread_s": 1.1e-5, "repeats": 5}
        for p in layer_points(distinct_calls([MLP])) if p.call
    ]  # fmt: skip
    shapes: list[Mapping[str, Any]] = [
        {"kind": "gemm", "direction": way, "precision": "fp32", "device": CPU.name, "library": "pytorch", "m": m,
         "n": 7, "k": 3 * m, "batch": 1, "time_s": factor * (1e-5 + m**1.9 * 1e-9)}
        for way in ("forward", "backward_data", "backward_weight") for m in range(8, 180, 19)
    ] + [
        {"kind": "copy", "direction": "forward", "precision": "fp32", "device": CPU.name, "library": "pytorch",
         "elements": n, "traffic": 2 * n, "fixed_bytes": 3, "time_s": factor * (2e-6 + n**0.98 * 1e-9)}
        for n in range(1000, 20000, 1700)
    ]  # fmt: skip
    return [*own, *shapes]


@pytest.fixture(scope="module")
def kept() -> dict[object, tuple[str, str]]:
    """Return the texts of calibrations and their samples that tests have made, by what they were made of."""
    return {}


@pytest.fixture
def calibrated(run: Run, instruments: Instruments, kept: dict[object, tuple[str, str]]) -> Callable[..., Calibration]:
    """Return a function: name of the output, factor of all times, a step's time, circumstances -> what is written."""

    def call(name: str, factor: float = 1.0, step_s: float = 0.1, **circumstances: str) -> Calibration:
        path, key = Path(name), (Path(name).name, factor, step_s, *circumstances.items())
        if key not in kept:
            made(name, factor, step_s, circumstances)
            kept[key] = path.read_text(), samples_path(path).read_text()
        path.write_text(kept[key][0])
        samples_path(path).write_text(kept[key][1])
        return CALIBRATION.read(name)

    def made(name: str, factor: float, step_s: float, circumstances: Mapping[str, str]) -> None:
        def measured(_place: object, _budget_s: float, **_named: object) -> Measurement:
            samples = Samples.from_rows(rows(factor), {**CIRCUMSTANCES, **circumstances})
            steps = tuple(TimedStep(net, 4, factor * step_s, 1e-3) for net in (MLP, probe_networks()[3]))
            return Measurement(samples, steps, CPU, NODE)

        instruments["measure"] = measured
        instruments["needed_kernels"] = lambda: (("copy", "forward"),)
        instruments["expected_fit_s"] = lambda *_given: 0.1
        code, _, err = run("calibrate", "--out", name)
        assert code == 0
        warnings = CALIBRATION.read(name).warnings
        assert all(f"planner: {warning}\n" in err for warning in warnings if "(kernel_scale)" in warning)

    return call


def test_the_file_gives_the_same_calibration(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("kept").mkdir()
    first = calibrated("kept/mine.json")
    assert samples_path(Path("kept/mine.json")) == Path("kept/mine.samples.csv")
    assert {"overheads", "kernels"} == {entry.scope for entry in first.entries}
    code, _, err = run("calibrate", "--samples", "kept", "--name", "mine", "--out", "again.json")
    assert (code, err) == (0, "planner: a bad hour\n")
    again = CALIBRATION.read("again.json")
    assert again == first
    assert not Path("again.samples.csv").exists()


@pytest.mark.parametrize(("step_s", "is_doubted"), [(1.6e-3, True), (3e-3, False)])
def test_kernels_timed_while_the_machine_was_busy_are_doubted_from_the_file_too(
    step_s: float, run: Run, calibrated: Callable[..., Calibration], *, is_doubted: bool
) -> None:
    """Nothing but the steps tells: half the time of their own kernels is another machine than that of the kernels."""
    Path("kept").mkdir()
    first = calibrated("kept/mine.json", step_s=step_s)
    assert any("while kernels were timed" in warning for warning in first.warnings) == is_doubted
    assert run("calibrate", "--samples", "kept", "--name", "mine", "--out", "again.json")[0] == 0
    assert CALIBRATION.read("again.json") == first


def test_runs_of_the_same_circumstances_are_fitted_together(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("both").mkdir()
    first, second = calibrated("both/a.json", 1.0), calibrated("both/b.json", 1.02, warning_disturbed="another")
    code, _, _ = run("calibrate", "--samples", "both", "--out", "merged.json")
    assert code == 0
    merged = CALIBRATION.read("merged.json")
    copies = (next(entry for entry in one.entries if entry.kind == "copy") for one in (first, merged, second))
    launch = [entry.coefficients["calls"] for entry in copies]
    assert launch == sorted(launch)
    assert merged.node == NODE
    # The step of which no calls were measured counts little beside the other, but it counts.
    assert [entry.samples for entry in merged.entries if entry.scope == "overheads"] == [2]
    assert set(merged.warnings) >= {"a bad hour; another"}


def test_steps_that_stand_in_two_files_count_once_as_kernels_do(
    run: Run, calibrated: Callable[..., Calibration]
) -> None:
    Path("both").mkdir()
    first = calibrated("both/a.json", step_s=3e-3)
    shutil.copy("both/a.samples.csv", "both/b.samples.csv")
    code, _, err = run("calibrate", "--samples", "both", "--name", "a", "--out", "merged.json")
    assert code == 0
    assert "planner: 2 of 4 training steps are timed again; the median of each is fitted\n" in err
    overheads = [
        [one for one in made.entries if one.scope == "overheads"] for made in (first, CALIBRATION.read("merged.json"))
    ]
    assert overheads[0] == overheads[1] != []


def test_a_step_that_another_file_contradicts_is_left_out_and_told(
    run: Run, calibrated: Callable[..., Calibration]
) -> None:
    Path("both").mkdir()
    first = calibrated("both/a.json", step_s=3e-3)
    shutil.copy("both/a.samples.csv", "both/b.samples.csv")
    with_steps(Path("both/b.samples.csv"), 4.0, 1.0)
    code, _, err = run("calibrate", "--samples", "both", "--name", "a", "--out", "merged.json")
    assert code == 0
    assert "planner: 1 of 3 training steps are timed again" in err
    made = CALIBRATION.read("merged.json")
    assert "another row of its call differs by more than the spread" in made.environment["rejected"]
    assert [e for e in made.entries if e.scope == "overheads"] == [e for e in first.entries if e.scope == "overheads"]


def test_runs_of_other_circumstances_are_refused(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("both").mkdir()
    calibrated("both/a.json")
    calibrated("both/b.json", framework="pytorch 9.8")
    code, out, err = run("calibrate", "--samples", "both", "--out", "merged.json")
    assert (code, out) == (3, "")
    assert "b.samples.csv: framework: circumstance must be 'pytorch 9.9', as in both/a.samples.csv" in err
    assert not Path("merged.json").exists()


def test_a_file_that_exists_is_left_alone(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("mine.samples.csv").write_text("mine")
    code, out, err = run("calibrate", "--out", "mine.json")
    assert (code, out) == (2, "")
    assert err == "planner: --out must be a new file, got 'mine.samples.csv', which exists; use --force to replace it\n"
    assert Path("mine.samples.csv").read_text() == "mine"
    Path("mine.samples.csv").unlink()
    calibrated("mine.json")
    assert read_samples("mine.samples.csv")[0].size > 0


def test_what_a_file_says_of_its_node_is_checked(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("kept").mkdir()
    calibrated("kept/mine.json")
    path = Path("kept/mine.samples.csv")
    lines = path.read_text().splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if line.startswith("# node: "))
    node = json.loads(lines[at].removeprefix("# node: "))
    for text, words in (("{", "node must be a table in JSON"), (json.dumps({**node, "gpus": 0}), "gpus")):
        path.write_text("".join([*lines[:at], f"# node: {text}\n", *lines[at + 1 :]]))
        code, _, err = run("calibrate", "--samples", "kept", "--out", "again.json")
        assert code == 3
        assert "mine.samples.csv" in err
        assert words in err


def test_steps_of_unknown_networks_are_left_out_and_said(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("kept").mkdir()
    first = calibrated("kept/mine.json")
    path = Path("kept/mine.samples.csv")
    path.write_text(path.read_text().replace(",mlp,", ",mpl,"))
    code, _, err = run("calibrate", "--samples", "kept", "--name", "mine", "--out", "again.json")
    assert code == 0
    assert "planner: rows of kind step of network 'mpl' are left out: network must be a known name" in err
    again = CALIBRATION.read("again.json")
    assert [entry.samples for entry in again.entries if entry.scope == "overheads"] == [1]
    assert replace(again, entries=()) == replace(first, entries=())


def with_steps(path: Path, *factors: float) -> None:
    """Multiply the times of a file's training steps."""
    samples = read_samples(path)[0]
    times = samples.time_s.copy()
    times[samples.text["kind"] == "step"] *= factors
    path.write_text(write_samples(replace(samples, number={**samples.number, "time_s": times})))


@pytest.mark.parametrize(
    ("factor", "end"),
    [
        (1e3, "looks like milliseconds; divide these rows alone by 1,000"),
        (1e-3, "looks like seconds divided by 1,000 once too often; multiply these rows alone by 1,000"),
        (60.0, "leave these rows out, or measure them again"),
    ],
)
def test_steps_in_another_unit_than_their_kernels_are_refused(
    factor: float, end: str, run: Run, calibrated: Callable[..., Calibration]
) -> None:
    Path("kept").mkdir()
    calibrated("kept/mine.json", step_s=3e-3)
    with_steps(Path("kept/mine.samples.csv"), factor, factor)
    code, out, err = run("calibrate", "--samples", "kept", "--name", "mine", "--out", "again.json")
    assert (code, out) == (3, "")
    assert ": time_s must " in err
    assert "got 2 of 2 rows of kind step that are " in err
    assert err.endswith(f" as their kernels (median): {end}\n")
    assert not Path("again.json").exists()


def test_a_step_far_off_its_kernels_is_left_out_and_told(run: Run, calibrated: Callable[..., Calibration]) -> None:
    Path("kept").mkdir()
    first = calibrated("kept/mine.json", step_s=3e-3)
    with_steps(Path("kept/mine.samples.csv"), 1e3, 1.0)
    code, _, err = run("calibrate", "--samples", "kept", "--name", "mine", "--out", "again.json")
    assert code == 0
    again = CALIBRATION.read("again.json")
    assert [entry.samples for entry in again.entries if entry.scope == "overheads"] == [1]
    kernels = [[entry for entry in one.entries if entry.scope == "kernels"] for one in (first, again)]
    assert kernels[0] == kernels[1]
    told = again.environment["rejected"].removeprefix("1 of 2 rows: ")
    assert f"planner: rejected: kept/{told}\n" in err
    assert ": time_s is 3 s, " in told
    assert told.endswith(" times as long as its kernels")
