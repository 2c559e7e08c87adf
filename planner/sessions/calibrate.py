"""From what is asked to a calibration: of sample files, of this machine, of its links, or refined by runs of plans.

One process at a time writes it: a lock beside the file goes with the process that holds it, however that ends.

Measuring the links of this node, or of all nodes that a launcher has started ranks on, for ``calibrate --links``.

Without a launcher this process is rank 0 and starts the others. Rank 0 alone tells, keeps and writes anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

import planner
from planner import catalog
from planner.costs.collectives import collective_s
from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration
from planner.domain.messages import ALL_REDUCE, Groups
from planner.domain.samples import BESIDE, COMMAND, HIDDEN, Samples, TimedStep
from planner.errors import CoverageError, OutputError, ParameterError
from planner.fitting.calibration import SampleOrigin, fit_calibration, fit_overlap
from planner.fitting.overheads import overheads_doubt
from planner.formats.logs import Stated
from planner.probes import ranks
from planner.probes.calibrate import WARNING_DISTURBED, CpuPlace, Measurement, Place, disturbed, place_of
from planner.probes.inputs import measure_copies
from planner.probes.precisions import import_torch
from planner.probes.ranks import ARRIVAL_S, Joined, Rank, Step, rank_of
from planner.probes.run import holds_measured, read_measured, remove_if_empty, start_file
from planner.sessions.inputs import Say, Values, value_of
from planner.sessions.measure import Request, Session, check_complete, check_served, measured, with_doubts
from planner.sessions.plan_runs import Asking, refined_here
from planner.sessions.sample_files import fitted_with_steps, links_of, samples_of, samples_text
from planner.steps.synchronous import backward_end_s, communication_prefix_s, ready_s

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
    if WARNING_DISTURBED in samples.circumstances:
        say(samples.circumstances[WARNING_DISTURBED])
    return calibration


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
    samples, device, node = measurement.samples, measurement.accelerator, measurement.node
    if WARNING_DISTURBED in samples.circumstances:
        session.say(samples.circumstances[WARNING_DISTURBED])
    try:
        calibration = session.fit(samples, name, device, node, origin, steps=measurement.steps)
    except CoverageError:
        calibration = Calibration(name, device.name, ())
    if request.networks:
        check_served(calibration, node, request, session.say, measurement.precisions)
    else:
        check_complete(calibration, session.needed_kernels(), request, session.say, measurement.precisions)
    for doubt in filter(None, (overheads_doubt(one) for one in calibration.entries if one.scope == "overheads")):
        session.say(doubt)
    return calibration, samples_text(measurement, origin.source, date)


def with_runs(asking: Asking, runs: Mapping[Configuration, TimedStep], name: str, date: str) -> tuple[Calibration, str]:
    """Return the calibration that runs made here refine, and the text of a file of these runs."""
    calibration, measurement = refined_here(asking, name, runs)
    source = f"training runs on {measurement.accelerator.name}"
    return dated(calibration, date), samples_text(measurement, source, date)


def dated(calibration: Calibration, date: str) -> Calibration:
    """Return a refined calibration with its own date, without the command that made the one before."""
    environment = {key: value for key, value in calibration.environment.items() if key != COMMAND}  # of the base alone
    return replace(calibration, date=date, environment=environment)


UNTIL_SHARE, LEAST_SHARE, COPIES_S = 0.7, 0.2, 3.0
"""Of the budget, by which messages have been timed, or are for so long at least: steps and fitting have the rest. What
copies between host and GPU take [s]."""
LARGEST_SLOWDOWN = 20.0
"""Of kernels beside messages: nineteen of twenty parts of a message then add to the step."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What ranks are to be measured, and for how long.

    Attributes
    ----------
    own : rank 0 of a launcher; None: ``ranks`` are started here, one a GPU where None is said
    device, threads : of rank 0
    began_s, budget_s : when the command began, by the session's clock, and what it may take [s]
    """

    own: Rank | None
    ranks: int | None
    device: str
    threads: int
    began_s: float
    budget_s: float


def rank_here(number: int | None) -> Rank | None:
    """Return which rank of a launcher this process is, None where none has started it.

    ParameterError: a ``number`` of ranks is given with a launcher's.
    """
    own = rank_of(os.environ)
    if own is not None and number is not None:
        rule = f"left out where a launcher has started ranks (here {own.size})"
        raise ParameterError("--ranks", rule, number)
    return own


def take_part_here(own: Rank, device: str, threads: int) -> None:
    """Measure as a rank that is not 0, silently."""
    if device == "cuda":  # each rank of a node has its own, or sees no other
        device = f"cuda:{own.local % import_torch().cuda.device_count()}"
    joined = _joined(own, place_of(device, (), catalog.known_accelerator, threads), threads, str)
    with ranks.losses_named(joined, str):
        ranks.take_part(joined, threads)


def _joined(own: Rank, place: Place, threads: int, gone: Callable[[], str]) -> Joined:
    facts = {
        "planner": planner.__version__,
        "pytorch": place.circumstances["framework"],
        "device": place.accelerator.name,
        "threads": str(threads),
    }
    return ranks.join(own, place.device, facts, arrival_s=ARRIVAL_S, gone=gone)


def links_here(asked: Asked, name: str, partial: Path, session: Session, *, date: str) -> tuple[Calibration, str]:
    """Return the calibration of links that rank 0 and the others measure, and the text of a file of what was measured.

    ``partial``: what was measured before, and is kept meanwhile.

    ParameterError: ranks did not come, are not alike, or were lost.
    """
    place, own = place_of(asked.device, (), catalog.known_accelerator, asked.threads), asked.own
    if own is None:
        size = asked.ranks or (1 if isinstance(place, CpuPlace) else place.node.gpus)
        if not isinstance(place, CpuPlace) and size > place.node.gpus:
            raise ParameterError("--ranks", f"at most {place.node.gpus}, the GPUs of this node", size)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        own = Rank(0, size, 0, socket.gethostname(), "127.0.0.1", port)
    with _started(own, asked) as gone:
        joined = _joined(own, place, asked.threads, gone)
        circumstances = {
            **{key: value for key, value in place.circumstances.items() if key not in ("design", "contained")},
            "threads": str(asked.threads),
            "ranks": f"{len(joined.nodes)} x {joined.ranks_per_node}",
            "library": joined.library,
        }
        earlier = read_measured(partial, circumstances, {point.name for point in ranks.link_points(joined)})
        if earlier.note:
            session.say(earlier.note)
        start_file(partial, circumstances, earlier.measured)
        with ranks.losses_named(joined, gone):
            left_s = asked.began_s + UNTIL_SHARE * asked.budget_s - session.clock_s()
            for_s = max(left_s - earlier.used_s, LEAST_SHARE * asked.budget_s)
            sentence = f"timing links between ranks, {own.size} in all, for {for_s:.0f} s"
            with session.bar("links", 1.0, sentence) as show:

                def say(done: int, total: int) -> None:
                    show(done / total, f"links: {done} of {total} points")

                until_s = earlier.used_s + for_s
                visits, steps = ranks.measure_points(joined, until_s, earlier, partial, say, threads=asked.threads)
            rows, notes = ranks.rows_of(joined, visits, place.accelerator.name), {}
            if visits.disturbed:  # no two visits agree
                first, count = visits.disturbed[0].name, len(visits.disturbed)
                more = ", ..." * (count > 1)
                notes["left_out"] = f"{count} points are left out, of which no two visits agree ({first}{more})"
                session.say(f"{notes['left_out']}; run it again when the machine is quiet")
            if joined.device != "cpu":
                copies = measure_copies(joined.device, COPIES_S)
                rows += [{**row, "device": place.accelerator.name} for row in copies]
            samples = Samples.from_rows(rows, notes)
    node = replace(place.node, gpus=joined.ranks_per_node)
    samples = replace(samples, circumstances={**circumstances, **samples.circumstances})
    origin = SampleOrigin(source=f"this machine: ranks on {place.accelerator.name}", date=date)
    if not samples.size:
        session.say("one rank sends nothing: all communication takes 0 s")
        return Calibration(name, place.accelerator.name, (), node=node, source=origin.source, date=date), ""
    calibration = fit_calibration(samples, name, place.accelerator, node, origin)
    found = overlap(calibration, steps, joined)
    samples = replace(samples, circumstances={**samples.circumstances, **found})
    text = samples_text(Measurement(samples, (), place.accelerator, node), origin.source, date)
    environment = {**calibration.environment, **found}
    entries = (*calibration.entries, *fit_overlap(environment, source=origin.source))
    return replace(calibration, entries=entries, environment=environment), text


def overlap(calibration: Calibration, steps: Sequence[Step], joined: Joined) -> dict[str, str]:
    """Return, as circumstances, how much longer kernels take beside messages, and the share of these that is hidden.

    Measured steps then come out as they were; nothing where there are none, or no all-reduce.

    A step with messages ends at (1 - x) prefix(J) + max over l of ready(l) + x prefix(l), x = 1 / slowdown, behind its
    forward pass (:mod:`planner.steps.step_part`): x from 0, nothing is hidden, to 1, all that can be.
    """
    sums = next((one for one in calibration.entries if one.kind == ALL_REDUCE), None)
    if sums is None or not steps:
        return {}
    groups = Groups(np.array([len(joined.nodes)]), np.array([joined.ranks_per_node]), np.ones(1))
    shares = np.linspace(1 / LARGEST_SLOWDOWN, 1.0, 400)
    misses, hidden = np.zeros(shares.size), []
    for step in steps:
        messages_s = collective_s(sums, ALL_REDUCE, np.array(step.layer_bytes, dtype=np.float64), groups)
        ready = ready_s(np.full((1, len(step.layer_bytes)), step.backward_s / len(step.layer_bytes)))
        prefix = communication_prefix_s(messages_s)
        first = np.zeros(1, dtype=np.int64)
        ends = np.array([backward_end_s(ready, share * prefix, first, first)[0] for share in shares])
        sent_s = float(prefix[0, -1])
        whole_s = step.forward_s + np.maximum(ends, step.backward_s) + (1 - shares) * sent_s
        misses += (whole_s / step.with_messages_s - 1) ** 2
        exposed_s = step.with_messages_s - step.forward_s - step.backward_s
        hidden.append(float(np.clip(1 - exposed_s / sent_s, 0.0, 1.0)))
    best = float(1 / shares[int(np.argmin(misses))])
    return {BESIDE: f"{best:.4g}", HIDDEN: f"{float(np.mean(hidden)):.4g}"}


@contextmanager
def _started(own: Rank, asked: Asked) -> Iterator[Callable[[], str]]:
    """Start the ranks beside rank 0, unless a launcher has; give what says which has ended, and end them."""
    processes: dict[int, subprocess.Popen[bytes]] = {}
    here = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(planner.__file__).parents[1]), *sys.path])}
    with tempfile.TemporaryFile() as errors:
        for rank in range(1, own.size) if asked.own is None else ():
            variables = {
                "RANK": str(rank), "WORLD_SIZE": str(own.size), "LOCAL_RANK": str(rank), "MASTER_ADDR": own.address,
                "MASTER_PORT": str(own.port),
            }  # fmt: skip
            where = asked.device if asked.device == "cpu" else f"cuda:{rank}"
            command = [sys.executable, "-m", "planner", "calibrate", "--links", "--device", where]
            processes[rank] = subprocess.Popen(  # noqa: S603 - this very program
                [*command, f"--threads={asked.threads}"], env=here | variables, stdout=subprocess.DEVNULL, stderr=errors
            )

        def gone() -> str:
            ended = {rank: one.returncode for rank, one in processes.items() if one.poll() is not None}
            if not any(ended.values()):
                return ""
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            rank, code = next((rank, code) for rank, code in ended.items() if code)
            return f"rank {rank} ended with {code}{f': {said[-1]}' if said else ''}"

        try:
            yield gone
            for one in processes.values():
                one.wait(timeout=ARRIVAL_S)
        finally:
            for one in processes.values():
                with suppress(OSError):
                    one.kill()
                one.wait()
