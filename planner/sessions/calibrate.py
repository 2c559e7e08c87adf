"""From what is asked to a calibration: of sample files, of this machine, or refined by runs of a suggestion's plans.

One process at a time writes it: a lock beside the file goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from planner import catalog
from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration
from planner.domain.samples import COMMAND, Samples
from planner.domain.training import TimedStep
from planner.errors import CoverageError, OutputError, ParameterError
from planner.fitting.calibration import SampleOrigin, fit_calibration
from planner.fitting.overheads import overheads_doubt
from planner.formats.link_logs import Stated
from planner.probes.calibrate import WARNING_DISTURBED, Measurement, disturbed
from planner.probes.resume import holds_measured, remove_if_empty
from planner.sessions.inputs import Say, Values, value_of
from planner.sessions.measure import Request, Session, check_complete, check_served, measured, with_doubts
from planner.sessions.plan_runs import Asking, kept_runs, refined_here, refined_with_runs, timed_here
from planner.sessions.sample_files import fitted_with_steps, links_of, samples_of, samples_text

__all__ = [
    "fitted_from_files", "fitted_here", "held_alone", "kept_when_interrupted", "refined_for_plans", "refined_from_runs",
    "with_runs",
]  # fmt: skip

SUFFIX = ".lock"


@contextmanager
def held_alone(what: str, path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is named as the file and ``.lock``; it is gone afterwards.

    The system gives it up with the process, so that what a killed one left is taken over. Systems without ``flock``
    lock nothing. A link in its place is refused: what is written to the lock would destroy where it leads.

    OutputError: another process holds it, or it cannot be made; ``what`` is the file in words.
    """
    beside = path.with_name(f"{path.name}{SUFFIX}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(beside)
    except OSError as error:
        raise OutputError(f"the lock of {what} must be writable, got {beside}: {error.strerror}") from error
    if file is None:
        by = "another process"
        with contextlib.suppress(OSError, ValueError):
            by = f"process {int(beside.read_text(encoding='ascii'))}"
        raise OutputError(
            f"{what} must be written by one process at a time, got {str(path)!r}, which {by} is writing: wait until it "
            "has ended, or name another file by --out"
        )
    try:
        try:
            file.write(f"{os.getpid()}\n")
            file.flush()
        except OSError as error:
            raise OutputError(f"the lock of {what} must be writable, got {beside}: {error.strerror}") from error
        yield
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
        with contextlib.suppress(OSError):  # a full disk fails here once more
            file.close()


def _locked(path: Path) -> IO[str] | None:
    """Return the lock file, locked; None where another process has locked it."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError:
        return _opened(path)
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), os.fstat(file.fileno())):
                file.truncate(0)
                return file
        file.close()  # its holder has removed it meanwhile: what is there now is another


def _opened(path: Path) -> IO[str]:
    """Open a lock file to write at its end; OSError where it is no plain file, or has another name besides."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags, 0o666), "a", encoding="ascii")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise OSError(errno.EINVAL, "it is no plain file of its own")
    return file


def fitted_from_files(place: Path, name: str, say: Say, values: Values) -> Calibration:
    """Return the calibration that sample files of one device give, or logs of tests of links.

    ``values``: those of ``--cluster``, ``--nodes`` and ``--gpus-per-node`` say of which links logs are.
    """
    cluster = catalog.find_cluster(values["cluster"].value) if "cluster" in values else None
    numbers = [value_of(values, option, (0,)) for option in ("nodes", "gpus_per_node")]
    for option, of_option in zip(("--nodes", "--gpus-per-node"), numbers, strict=True):
        if len(of_option) > 1:
            rule = "one number, that of the logs that do not say"
            raise ParameterError(option, rule, ",".join(map(str, of_option)), "fit others apart")
    links = links_of(place, name, cluster, Stated(numbers[0][0], numbers[1][0]))
    if isinstance(links, Calibration):
        return links
    samples, node, steps = samples_of(links, place, name, say)
    samples = replace(samples, circumstances={**disturbed(samples), **samples.circumstances})
    calibration = fitted_with_steps(fit_calibration(samples, name, node.accelerator, node), steps, say)
    _tell_disturbed(samples, say)
    return calibration


def _tell_disturbed(samples: Samples, say: Say) -> None:
    if WARNING_DISTURBED in samples.circumstances:
        say(samples.circumstances[WARNING_DISTURBED])


@contextmanager
def kept_when_interrupted(partial: Path, say: Say) -> Iterator[None]:
    """Say at an interrupt what of the measuring is kept in ``partial``; without anything measured it goes."""
    try:
        yield
    except KeyboardInterrupt:
        sentence = f"what was measured so far is kept in {partial}; the same command goes on from there"
        say(sentence if holds_measured(partial) else "nothing was measured yet, so nothing is kept")
        remove_if_empty(partial)
        raise


def fitted_here(
    request: Request, name: str, partial: Path, session: Session, *, date: str, began_s: float
) -> tuple[Calibration, str]:
    """Return the calibration that measuring this machine gives, and the text of a samples file of what was measured.

    ``name``, ``date``: of the calibration; ``partial``: what was measured before, and is kept meanwhile; ``began_s``:
    when the command began, on the session's clock.

    CoverageError: it would serve no network; the budget that suffices is named.
    """
    before_s = session.clock_s() - began_s
    measurement = measured(request, partial, session, before_s)
    measurement = with_doubts(
        measurement, session.clock_s() - began_s - before_s, catalog.own_calibrations(), session.say
    )
    origin = SampleOrigin(source=f"this machine: {measurement.accelerator.name}", date=date)
    _tell_disturbed(measurement.samples, session.say)
    calibration = _fitted(measurement, name, origin, request, session)
    for doubt in filter(None, (overheads_doubt(one) for one in calibration.entries if one.scope == "overheads")):
        session.say(doubt)
    return calibration, samples_text(measurement, origin.source, date)


def _fitted(
    measurement: Measurement, name: str, origin: SampleOrigin, request: Request, session: Session
) -> Calibration:
    try:
        calibration = session.fit(
            measurement.samples, name, measurement.accelerator, measurement.node, origin, steps=measurement.steps
        )
    except CoverageError:
        calibration = Calibration(name, measurement.accelerator.name, ())
    if request.networks:
        check_served(calibration, measurement.node, request, session.say, measurement.precisions)
    else:
        check_complete(calibration, session.needed_kernels(), request, session.say, measurement.precisions)
    return calibration


def refined_for_plans(
    asking: Asking, name: str, session: Session, *, date: str, budget_s: float, began_s: float
) -> tuple[Calibration, str]:
    """Return the calibration that short runs of a suggestion's plans refine, and the text of a file of these runs.

    Parameters and errors are those of :func:`planner.sessions.plan_runs.timed_here` and ``kept_runs``.
    """
    results, enough = timed_here(asking, session, budget_s=budget_s, began_s=began_s)
    return with_runs(asking, kept_runs(asking, results, enough, session.say), name, date)


def with_runs(asking: Asking, runs: Mapping[Configuration, TimedStep], name: str, date: str) -> tuple[Calibration, str]:
    """Return the calibration that runs made here refine, and the text of a file of these runs."""
    calibration, measurement = refined_here(asking, name, runs)
    source = f"training runs on {measurement.accelerator.name}"
    return _dated(calibration, date), samples_text(measurement, source, date)


def refined_from_runs(
    plan: tuple[str, int | None],
    runs: Sequence[str],
    calibrations: Sequence[str],
    name: str,
    session: Session,
    *,
    date: str,
) -> Calibration:
    """Return the calibration that measured steps of a suggestion's plans refine.

    Parameters and errors are those of :func:`planner.sessions.plan_runs.refined_with_runs`.
    """
    return _dated(refined_with_runs(plan, runs, calibrations, name, session.say), date)


def _dated(calibration: Calibration, date: str) -> Calibration:
    environment = {key: value for key, value in calibration.environment.items() if key != COMMAND}  # of the base alone
    return replace(calibration, date=date, environment=environment)
