"""``planner calibrate``: what is refused before anything is measured, sample files, interruptions."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner import catalog
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Node
from planner.domain.network import Point
from planner.domain.samples import Samples
from planner.formats.calibration import CALIBRATION
from planner.formats.samples import write_samples
from planner.probes import calibrate, gpu
from planner.probes.calibrate import Measurement, Own, Place
from planner.probes.run import PASSING_CIRCUMSTANCES, Goal, Measured, holds_measured, start_file
from planner.sessions.measure import needed_kernels

Run = Callable[..., tuple[int, str, str]]
Instruments = dict[str, Any]
LAUNCH_S, S_PER_BYTE = 2e-6, 1e-10
FIT_S = 2.0
POINT = Measured("a point", 1e-3, 0.0, 5, 1e-3, 1.0)
CPU = Accelerator("cpu-made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(planner.__file__).parents[1])}


def made_samples(device: str = "v100-sxm2-16gb") -> Samples:
    """Return copies whose time is known: a launch, and bytes at a rate."""
    rows: list[Mapping[str, Any]] = [
        {"kind": "copy", "direction": "forward", "precision": "fp32", "device": device, "elements": n, "traffic": 2 * n,
         "fixed_bytes": 0, "time_s": LAUNCH_S + S_PER_BYTE * 8 * n, "source": "made up", "group": f"g{n}"}
        for n in (2**at for at in range(8, 24))
    ]  # fmt: skip
    return Samples.from_rows(rows, {"device": device})


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "copies.csv").write_text(write_samples(made_samples()))
    return str(tmp_path / "measured")


def points_as_samples(points: Sequence[Point]) -> Samples:
    """Return calls of networks that take 1 ms and as much again for every sample."""
    rows: list[Mapping[str, Any]] = [
        {"kind": p.kind, "direction": p.direction, "precision": "fp32", "device": CPU.name, "library": "pytorch",
         **p.work, "call": p.call.name, "sub_batch": p.sub_batch, "time_s": 1e-3 * (1 + p.sub_batch), "spread_s": 1e-5}
        for p in points if p.call
    ]  # fmt: skip
    return Samples.from_rows(rows, {})


@pytest.fixture
def missing() -> dict[str, int]:
    """Return how many of the last points are not measured; a test may change it."""
    return {}


@pytest.fixture
def measuring(instruments: Instruments, missing: dict[str, int]) -> list[float]:
    """Replace the measuring loop; return the list of its budgets, without what is kept to fit a whole design."""
    budgets: list[float] = []

    def measured(
        place: Place,
        budget_s: float,
        *,
        own: Own,
        goal: Goal,
        input_folder: Path,
        resume: Path,
        progress: object,
        say: object,
    ) -> Measurement:
        assert input_folder == Path()
        assert callable(progress)
        assert callable(say)
        assert place.device == "cpu"
        assert bool(own.points) == bool(own.networks)
        assert bool(goal.later) != bool(own.networks)
        resume.parent.mkdir(parents=True, exist_ok=True)
        start_file(resume, place.circumstances, [POINT])
        budgets.append(budget_s - goal.kept_s(10**6))
        layers = points_as_samples(own.points[: len(own.points) - missing.get("points", 0)])
        return Measurement(made_samples(CPU.name).joined(layers), (), CPU, Node(1, CPU))

    instruments["measure"] = measured
    instruments["needed_kernels"] = lambda: (("copy", "forward"),)
    instruments["expected_fit_s"] = lambda *_given: FIT_S
    return budgets


def test_sample_files_give_back_the_coefficients(run: Run, folder: str) -> None:
    code, out, err = run("calibrate", "--samples", folder, "--out", "fit.json", "--name", "from-files")
    assert (code, err) == (0, "")
    assert out.startswith("Calibration from-files: fit.json\n")
    assert max(map(len, out.splitlines())) <= 80
    calibration = CALIBRATION.read("fit.json")
    assert (calibration.name, calibration.accelerator) == ("from-files", "v100-sxm2-16gb")
    assert calibration.node is not None
    assert calibration.node.gpus == 1
    entry = next(one for one in calibration.entries if one.kind in ("copy", "pointwise"))
    assert sorted(entry.coefficients.values()) == pytest.approx([S_PER_BYTE, LAUNCH_S])


def test_an_output_that_exists_is_left_alone(run: Run, folder: str, measuring: list[float]) -> None:
    Path("fit.json").write_text("mine")
    sentence = "planner: --out must be a new file, got 'fit.json', which exists; use --force to replace it\n"
    assert run("calibrate", "--samples", folder, "--out", "fit.json") == (2, "", sentence)
    assert run("calibrate", "--out", "fit.json") == (2, "", sentence)
    assert Path("fit.json").read_text() == "mine"
    assert measuring == []
    assert run("calibrate", "--samples", folder, "--out", "fit.json", "--force")[0] == 0
    assert CALIBRATION.read("fit.json").name == "fit"


@pytest.mark.parametrize("path", ["nowhere/fit.json", "."])
def test_an_output_that_cannot_be_is_refused_before_measuring(path: str, run: Run, measuring: list[float]) -> None:
    code, out, err = run("calibrate", "--out", path, "--force")
    assert (code, out) == (2, "")
    assert err.startswith("planner: --out must be a file in a folder that exists, got ")
    assert measuring == []


@pytest.mark.parametrize("path", ["fit.toml", "fit.txt", "fit"])
def test_an_output_of_another_suffix_is_refused(path: str, run: Run, folder: str, measuring: list[float]) -> None:
    sentence = f"planner: --out must be a file whose name ends in .json, got {path!r}; use 'fit.json'\n"
    assert run("calibrate", "--out", path) == (2, "", sentence)
    assert run("calibrate", "--samples", folder, "--out", path) == (2, "", sentence)
    assert measuring == []


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(
    run: Run, measuring: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("file").write_text("mine")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    code, out, err = run("calibrate")
    assert (code, out, measuring) == (2, "", [])
    assert (
        err
        == f"planner: the calibration must be in a folder that can be written, got {tmp_path}/file: Not a directory\n"
    )


def test_missing_torch_is_said_before_anything_else(
    run: Run, measuring: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = run("calibrate")
    assert (code, out, measuring) == (2, "", [])
    assert err.startswith("planner: measuring must be done with PyTorch, got no package torch; pip install")


def test_a_bundled_name_is_refused(run: Run, folder: str, measuring: list[float]) -> None:
    sentence = "planner: --name must be a name of your own, got 'tsubame-kfc'; a bundled calibration has this one\n"
    assert run("calibrate", "--name", "tsubame-kfc") == (2, "", sentence)
    assert run("calibrate", "--samples", folder, "--out", "tsubame-kfc.json") == (2, "", sentence)
    assert measuring == []


def test_a_bundled_calibration_can_be_made_again(run: Run, folder: str) -> None:
    code, _, _ = run("calibrate", "--samples", folder, "--name", "tsubame-kfc", "--out", "again.json")
    assert code == 0
    assert CALIBRATION.read("again.json").name == "tsubame-kfc"


@pytest.mark.parametrize(("budget", "enough"), [("59s", "60s"), ("60s", "120s")])
def test_too_few_kernels_are_exit_5_and_kept_for_resuming(
    budget: str, enough: str, run: Run, measuring: list[float], instruments: Instruments
) -> None:
    instruments["needed_kernels"] = lambda: (("convolution", "backward_data"), ("copy", "forward"))
    code, out, err = run("calibrate", "--budget", budget)
    assert (code, out, len(measuring)) == (5, "", 1)
    assert "too few timings of convolution (backward data); what was measured is kept" in err
    assert err.endswith(f"the same command with --budget {enough} goes on from there\n")
    folder = catalog.own_calibrations_folder()
    assert not folder.exists()
    assert holds_measured(folder.parent / "partial" / "local.jsonl")


def test_kernels_of_the_bundled_networks_are_needed() -> None:
    needed = needed_kernels()
    assert {kind for kind, _ in needed[:6]} == {"convolution", "gemm"}
    assert {("update", "update"), ("batch_norm", "backward_data"), ("lrn", "forward")} <= set(needed)


@pytest.mark.usefixtures("measuring")
def test_layers_of_networks_are_stored_and_looked_up(run: Run) -> None:
    code, _, err = run("calibrate", "--network", "mlp", "--network", "mlp", "--out", "own.json")
    assert code == 0
    assert re.fullmatch(r"planner: measuring this CPU for 59 s\n", err)
    calls = [entry for entry in CALIBRATION.read("own.json").entries if entry.term == "calls.measured"]
    assert {"gemm", "activation", "softmax", "update"} <= {entry.kind for entry in calls}
    arguments = ("--calibration", "own.json", "--network", "mlp", "--sub-batch", "8", "--json")
    code, out, err = run("predict", *arguments)
    assert (code, err) == (0, "")
    prediction = json.loads(out)
    (word,) = [one["message"] for one in prediction["warnings"] if one["code"] == "own_layers"]
    assert word.startswith("100.0% of the kernel time was measured with the layers of mlp themselves, ")
    # Updates do not depend on the sub-batch; 8 is none that was timed.
    assert re.search(r", \d+\.\d% as exact calls and \d+\.\d% between measured sub-batches\.$", word)


def test_a_budget_too_small_for_the_layers_says_what_is_missing(
    run: Run, measuring: list[float], missing: dict[str, int]
) -> None:
    missing["points"] = 45
    code, out, err = run("calibrate", "--network", "mlp", "--budget", "3s", "--out", "own.json")
    assert (code, out, len(measuring)) == (5, "", 1)
    assert "must hold every kernel of the networks, got too few timings of gemm " in err
    assert err.endswith("what was measured is kept, and the same command with --budget 60s goes on from there\n")
    assert Path("own.json.partial").exists()


@pytest.mark.usefixtures("measuring")
def test_calls_that_fits_can_serve_may_be_left_to_them(run: Run, missing: dict[str, int]) -> None:
    missing["points"] = 2  # updates, which the copies serve too
    code, _, err = run("calibrate", "--network", "mlp", "--budget", "3s", "--out", "own.json")
    assert code == 0
    assert re.search(r"planner: 1 of the \d+ calls of the networks are left to fits; with --budget 60s more", err)


def test_a_network_larger_than_the_memory_is_refused(run: Run, measuring: list[float]) -> None:
    code, out, err = run("calibrate", "--network", "gpt:layers=96,hidden=12288,heads=96,sequence=128")
    assert (code, out, measuring) == (2, "", [])
    assert "--network must be a network that fits the " in err


@pytest.mark.usefixtures("measuring")
def test_a_disturbed_machine_is_said(run: Run, instruments: Instruments) -> None:
    sentence = "12% of the convolutions and products were measured while the machine was disturbed"

    def disturbed(_place: object, _budget_s: float, **_named: object) -> Measurement:
        samples = made_samples(CPU.name)
        circumstances = {**samples.circumstances, "warning_disturbed": sentence}
        return Measurement(replace(samples, circumstances=circumstances), (), CPU, Node(1, CPU))

    instruments["measure"] = disturbed
    code, out, err = run("calibrate", "--out", "fit.json")
    assert code == 0
    assert f"planner: {sentence}\n" in err
    assert CALIBRATION.read("fit.json").warnings == (sentence,)
    assert "disturbed" in out


def test_measuring_writes_a_stamped_file_that_suggest_finds(run: Run, measuring: list[float]) -> None:
    code, out, err = run("calibrate", "--device", "cpu", "--budget", "40s", "--json")
    assert (code, err) == (0, f"planner: measuring this CPU for {measuring[0] + FIT_S:.0f} s\n")
    assert 30 <= measuring[0] <= 40 - FIT_S
    assert json.loads(out)["accelerator"] == CPU.name
    (path,) = catalog.own_calibrations_folder().glob("*.json")
    assert path.read_text() == out
    assert catalog.newest_own_calibrations([CPU.name]) == (CALIBRATION.read(path),)


def test_the_default_budget_leaves_time_to_fit_within_a_minute(run: Run, measuring: list[float]) -> None:
    assert run("calibrate", "--out", "fit.json")[0] == 0
    assert 50 < measuring[0] <= 60 - FIT_S
    assert "[default: 60s]" in run("calibrate", "--help")[1]


def test_a_fit_takes_no_more_of_a_budget_than_a_part(
    run: Run, measuring: list[float], instruments: Instruments
) -> None:
    instruments["expected_fit_s"] = lambda *_given: 1e3
    assert run("calibrate", "--out", "fit.json", "--budget", "20s")[0] == 0
    assert 0.5 * 20 <= measuring[0] <= 0.6 * 20


def test_an_interrupt_while_fitting_keeps_the_measurements(
    run: Run, measuring: list[float], instruments: Instruments
) -> None:
    partial = Path("fit.json.partial")

    def interrupted(*_arguments: object, **_named: object) -> Calibration:
        raise KeyboardInterrupt

    instruments["fit"] = interrupted
    code, _, err = run("calibrate", "--out", "fit.json")
    assert code == 130
    assert "kept in fit.json.partial" in err
    assert holds_measured(partial)
    del instruments["fit"]
    assert run("calibrate", "--out", "fit.json")[0] == 0
    assert not partial.exists()
    assert len(measuring) == 2


def test_the_time_that_is_said_is_what_an_earlier_run_left(run: Run, measuring: list[float]) -> None:
    """Under other circumstances it is not continued, and points of other networks are not charged."""
    partial, place = Path("fit.json.partial"), calibrate.CpuPlace()
    own, known = place.points()[0].name, place.circumstances
    for circumstances, name, left_s, more in (
        (known, own, 25, " more"),
        (known, "?", 0, ""),
        ({"cpu": "?"}, own, 0, ""),
    ):
        lasting = {key: value for key, value in circumstances.items() if key not in PASSING_CIRCUMSTANCES}
        start_file(partial, lasting, [POINT, replace(POINT, name=name, used_s=26.0)])
        code, _, err = run("calibrate", "--out", "fit.json", "--force")
        assert code == 0
        assert err == f"planner: measuring this CPU for {measuring[-1] + FIT_S - left_s:.0f} s{more}\n"


def test_cuda_without_cuda_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def torch(gpus: int) -> Callable[[], SimpleNamespace]:
        return lambda: SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus))

    monkeypatch.setattr(gpu, "import_torch", torch(0))
    sentence = "--device must be a device that PyTorch sees, got 'cuda' without CUDA; use --device cpu"
    assert run("calibrate", "--device", "cuda") == (2, "", f"planner: {sentence}\n")
    monkeypatch.setattr(gpu, "import_torch", torch(1))
    sentence = "--device must be cuda:0, the only GPU that PyTorch sees, got 'cuda:1'"
    assert run("calibrate", "--device", "cuda:1") == (2, "", f"planner: {sentence}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--samples", "."),
            "--samples must be a file or folder of samples (*.csv), or of logs of tests of links, got '.'",
        ),
        (
            ("--samples", "x", "--budget", "9s"),
            "--budget must be left out with --samples, which measures nothing, got '9s'",
        ),
        (("--network", "resnet5"), "network must be a known name, got 'resnet5'; did you mean 'resnet50' or"),
        (("--samples", "x", "--network", "mlp"), "--network must be left out with --samples, which measures nothing"),
        (("--samples", "x", "--target-error", "5%"), "--target-error must be left out with --samples"),
        (("--target-error", "0%"), "--target-error must be above 0 and at most 100%, got '0%'"),
        (
            ("--precision", "fp16"),
            "--precision must be one that the device can be measured in: fp32, bf16, int8, got 'fp16'",
        ),
        (("--name", "a b"), "--name must be letters, digits and . _ + -, got 'a b'"),
    ],
)
def test_what_cannot_be_is_exit_2(arguments: tuple[str, ...], words: str, run: Run, measuring: list[float]) -> None:
    code, out, err = run("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"planner: {words}")
    assert measuring == []


def started(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a calibration that an interrupt reaches, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        command = (sys.executable, "-m", "planner", "calibrate", *arguments)
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.live
def test_a_real_interrupt_keeps_samples_and_the_next_run_goes_on() -> None:
    partial = Path("here.json.partial")
    with started("--device", "cpu", "--budget", "30s", "--out", "here.json") as process:
        deadline = time.monotonic() + 60
        while not (partial.exists() and partial.read_text().count("\n") > 20) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"kept in here.json.partial" in err
    assert not Path("here.json").exists()
    kept = partial.read_text().count("\n")
    began = time.monotonic()
    with started("--device", "cpu", "--budget", "30s", "--out", "here.json") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert b"continuing from here.json.partial: " in err
    assert time.monotonic() - began < 1.1 * 30 + 10  # at most 10 s to load packages
    assert kept > 20
    assert not partial.exists()
    assert CALIBRATION.read("here.json").node is not None
