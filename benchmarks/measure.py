"""Figures of source trees, measured alternately: processes of one tree between those of the other."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import works
from benchmarks.figures import Figure

__all__ = ["ROOT", "Measured", "compiled", "full_name", "measure", "tree_of"]

ROOT = Path(__file__).resolve().parent.parent
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Threads that wait for one another take processor time, how much depends on the machine's load."""


@dataclass
class Measured:
    """What a tree took for a figure, round by round.

    Attributes
    ----------
    ratios : list of float
        Processor time over that of the fixed workload.
    peaks_bytes : list of float
        Most memory that the process held, where it says so.
    error : str
        Why the tree has no such figure; '' where it has.
    """

    ratios: list[float] = field(default_factory=list)
    peaks_bytes: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """The median; None without any."""
        return median(self.ratios) if self.ratios else None

    @property
    def peak_bytes(self) -> float | None:
        """The median; None without any."""
        return median(self.peaks_bytes) if self.peaks_bytes else None


def full_name(commit: str) -> str:
    """Return the whole name of a commit of this repository.

    Raises
    ------
    ValueError
        It has no such commit.
    """
    command = ("git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"--against must be a commit of this repository, got {commit!r}")
    return done.stdout.strip()


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Give a folder with the package as a commit has it, for as long as it is needed."""
    command = ("git", "-C", str(ROOT), "archive", "--format=tar", commit, "planner", "calibrations")
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        compiled(Path(folder))
        yield Path(folder)


def compiled(tree: Path) -> None:
    """Let Python compile the modules of a tree, so that no run does."""
    subprocess.run((sys.executable, "-m", "compileall", "-q", str(tree / "planner")), check=True)


def measure(
    figure: Figure, trees: Sequence[Path], rounds: int, say: Callable[[str], object] = lambda _: None
) -> list[Measured]:
    """Return what each tree takes for a figure, over so many rounds in which all take turns."""
    found = [Measured() for _ in trees]
    for number in range(rounds):
        turns = list(zip(trees, found, strict=True))
        for tree, one in turns[:: -1 if number % 2 else 1]:
            if not one.error:
                say(f"{figure.name}: round {number + 1} of {rounds}, {tree}")
                _once(figure, tree, one)
    return found


def _once(figure: Figure, tree: Path, measured: Measured) -> None:
    """Add one run of a figure to what was measured, or why there is none."""
    try:
        if figure.command:
            seen = works.timed(lambda: _python(tree, "-m", "planner", *figure.command), _children_cpu_s)
        else:
            seen = json.loads(_python(tree, works.__file__, figure.work, json.dumps(dict(figure.arguments))))
    except subprocess.CalledProcessError as error:
        measured.error = (str(error.stderr).strip().splitlines() or [str(error)])[-1]
        return
    measured.ratios.append(seen["cpu_s"] / seen["fixed_s"])
    if figure.has_memory:
        measured.peaks_bytes.append(seen["peak_bytes"])


def _children_cpu_s() -> float:
    """Return the processor time of the processes that were started and have ended [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _python(tree: Path, *arguments: str) -> str:
    """Return what Python prints with the package of a tree, in an empty folder, for a user without calibrations."""
    with TemporaryDirectory() as folder:
        environment = os.environ | THREADS | {"PYTHONPATH": str(tree), "XDG_DATA_HOME": folder}
        command = (sys.executable, *arguments)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout
