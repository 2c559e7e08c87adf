"""Whole output and exit codes of the program itself: help, version, mistyped words, closed pipes, imports."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import planner
from planner.errors import CoverageError, InputFileError, NothingFitsError, ParameterError, PlannerError

Run = Callable[..., tuple[int, str, str]]
HEAVY = ("numpy", "rich.table", "pandas", "torch", "sklearn", "optuna", "scipy", "matplotlib")
COMMAND = (sys.executable, "-m", "planner")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(planner.__file__).parents[1])}

HELP = """\
Usage: planner [OPTIONS] COMMAND [ARGS]...

  Pick node count, sub-batch, precision and mode that finish a training epoch
  soonest.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  suggest        Rank plans near a target mini-batch by epoch time or cost.
  search-worker  Run more trials of a study of suggest --search optuna.
  sweep          Show the objective against nodes and sub-batch.
  predict        Predict configurations, term by term.
  batch          Answer requests, one JSON document per line.
  explain        Print any part of an answer saved as JSON.
  validate       Compare predictions with measured runs.
  show           Show what is bundled, or everything about one thing.
  calibrate      Measure this node, fit the cost terms, write a calibration.
  verify         Run a few steps of a plan here, beside their prediction.
  render         Write a plan saved as JSON as a job file.
  report         Write an answer saved as JSON as one HTML page.
  doctor         Say what is installed and missing, and what needs it.
"""


def test_help_lists_the_commands(run: Run) -> None:
    assert run("--help") == (0, HELP, "")
    assert run() == (0, HELP, "")
    assert run("-h") == (0, HELP, "")


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"planner {planner.__version__}\n", "")


def test_a_mistyped_command_is_answered_with_the_nearest(run: Run) -> None:
    sentence = "planner: command must be a known name, got 'sugest'; did you mean 'suggest'?"
    known = "batch, calibrate, doctor, explain, predict, render, report, search-worker, show, suggest, sweep, validate"
    assert run("sugest") == (2, "", f"{sentence} Known: {known}, verify.\n")


def test_an_option_without_its_value_is_named(run: Run) -> None:
    sentence = "--nodes must be given with a value, got nothing; see 'planner suggest --help'"
    assert run("suggest", "--nodes") == (2, "", f"planner: {sentence}\n")


def test_a_mistyped_option_is_answered_with_the_nearest(run: Run) -> None:
    sentence = "planner: option must be a known name, got '--target-batc'; did you mean '--target-batch'?"
    expected = f"{sentence} See 'planner suggest --help'.\n"
    assert run("suggest", "--target-batc", "138") == (2, "", expected)


@pytest.mark.parametrize("arguments", [("show", "a", "b", "c"), ("suggest", "--nodes"), ("suggest", "--json=1")])
def test_a_wrong_command_line_is_one_sentence(arguments: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert " must be " in err
    assert ", got " in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ParameterError("x", "y", 1), 2),
        (InputFileError("f", "text must be TOML, got x"), 3),
        (NothingFitsError("nothing"), 4),
        (CoverageError("missing"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_failures_have_exit_codes_and_one_line(error: BaseException, code: int, run: Run) -> None:
    def fail(_name: str, _given: object) -> None:
        raise error

    got, out, err = run("suggest", by=fail)
    assert (got, out, err.count("\n")) == (code, "", 1)
    if isinstance(error, PlannerError):
        assert err == f"planner: {error}\n"


def test_a_bug_is_not_hidden(run: Run) -> None:
    def fail(_name: str, _given: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run("suggest", by=fail)


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command loads."""
    load = "import sys; from planner.cli.main import main; main(sys.argv[1:])"
    script = f"{load}; print(*sys.modules, sep='\\n', file=sys.stderr)"
    done = subprocess.run(
        (sys.executable, "-c", script, *arguments), env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("suggest", "--help"), ("--version",)])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    loaded = imported(*arguments)
    assert "planner.cli.main" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_suggest_loads_no_fitting_packages(form: tuple[str, ...]) -> None:
    loaded = imported("suggest", "--target-batch", "138", *form)
    assert "planner.search.suggest" in loaded
    assert loaded.isdisjoint({"torch", "sklearn", "optuna", "pandas", "scipy", "rich", "pydantic", "numpy.ma"})
    assert loaded.isdisjoint({"planner.search.optuna_search", "planner.search.loosen", "planner.search.studies"})


def test_help_is_fast() -> None:
    """Under 0.5 s of the CPU, the best of three: other work beside it slows the wall clock."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run((*COMMAND, "--help"), env=ENVIRONMENT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5


@pytest.mark.parametrize(
    "arguments", [("--help",), ("show", "networks", "resnet152"), ("suggest", "--target-batch", "138")]
)
def test_a_closed_pipe_ends_quietly(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run((*COMMAND, *arguments), env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not line.startswith(b"warning: ")] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run((*COMMAND, "--help"), env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"planner: standard output must be writable, got 'No space left on device'\n"


def test_an_interrupt_exits_130() -> None:
    """A real signal, sent while the program waits for a reader of its output."""
    script = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored in background
        "from planner.cli.main import main; "
        "sys.exit(main(['suggest'], lambda *_: (print('up', file=sys.stderr, flush=True), time.sleep(60))))"
    )
    with subprocess.Popen((sys.executable, "-c", script), env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"planner: interrupted\n"
    assert process.returncode == 130


NOTHING_FITS = (
    "suggest",
    "--network",
    "resnet50",
    "--cluster",
    "dgx1-v100",
    "--nodes",
    "8",
    "--target-batch",
    "1009",
    "--tolerance",
    "0",
)
OUTCOMES = [
    (("show", "clusters"), 0),
    (("suggest",), 0),
    (("sugest",), 2),
    (("show", "networks", "missing.toml"), 3),
    (NOTHING_FITS, 4),
    (("predict", "--sub-batch", "8", "--precision", "fp16"), 5),
]


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        *((*outcome, ">&- 2>&-") for outcome in OUTCOMES),
        *((NOTHING_FITS, 4, closed) for closed in ("<&- >&- 2>&-", "2>/dev/full")),
    ],
)
def test_exit_codes_stand_without_streams(arguments: tuple[str, ...], code: int, closed: str) -> None:
    done = subprocess.run(
        ("/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *arguments),
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if ">&-" in closed.split() or closed.startswith("<"):
        assert done.stdout == ""


def test_exit_codes_stand_when_the_reader_is_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        (*COMMAND, *NOTHING_FITS), env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert done.returncode == 4
    *warnings, sentence = done.stderr.splitlines()
    assert all(line.startswith(b"warning: ") for line in warnings)
    assert sentence.startswith(b"planner: no plan meets")


def test_a_deleted_working_folder_is_no_traceback(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1"; rmdir "$1"; shift; exec "$@"'

    def run_there(*arguments: str) -> subprocess.CompletedProcess[str]:
        gone.mkdir(exist_ok=True)
        words = ("/bin/sh", "-c", script, "sh", str(gone), *COMMAND, *arguments)
        return subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    done = run_there("predict", "--sub-batch", "8", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    done = run_there("predict", "--network", "mine.toml", "--sub-batch", "8")
    assert done.returncode == 3
    assert done.stderr.startswith("planner: mine.toml: file must be readable")
    done = run_there("calibrate", "--samples", "measured")
    assert done.returncode == 2
    assert done.stderr == (
        "planner: the working folder must be there, got 'No such file or directory'; change to a folder that exists\n"
    )
