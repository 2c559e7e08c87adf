"""``planner calibrate``: measure this node, or read sample files, fit, write a calibration.

``planner verify``: a few real steps of a plan's per-GPU part here, beside their prediction.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli.options import OPTIONS
from planner.cli.request import from_options
from planner.cli.streams import bar, note, write_document, write_view
from planner.domain.calibration import Calibration
from planner.domain.cluster import LOCAL
from planner.errors import NOTHING, OutputError, ParameterError
from planner.formats.calibration import CALIBRATION
from planner.formats.cluster import write_cluster
from planner.formats.documents import check_replaceable, write_file
from planner.formats.summaries import verification_document
from planner.probes.ranks import Rank
from planner.report.parts import configuration_words
from planner.report.show import fit_view
from planner.report.studies import verified_view
from planner.sessions.calibrate import (
    Asked,
    dated,
    fitted_from_files,
    fitted_here,
    held_alone,
    kept_when_interrupted,
    links_here,
    rank_here,
    take_part_here,
    with_runs,
)
from planner.sessions.inputs import Values, listed, seen_cluster, value_of
from planner.sessions.measure import DEFAULT_BUDGET_S, Request, Session, check_writable, networks_of, shards_of
from planner.sessions.plan_runs import asking_for, asking_of, compared, kept_runs, refined_with_runs, timed_here
from planner.sessions.runs import kept_plan
from planner.sessions.sample_files import samples_path
from planner.sources.links import with_measured_links

_NAME = re.compile(r"[\w.+-]+", re.ASCII)
LONGEST_NAME = 100
"""With time stamp and suffix a file name, which most systems limit to 255 bytes; '..' or '-x' would be other things."""
MEASURING_OPTIONS = ("device", "threads", "links", "target_error", "network", "tensor_parallel", "precision")
CLASHES = (
    ("links", ("target_error", "network", "tensor_parallel", "precision"), "which times no kernels"),
    ("samples", (*MEASURING_OPTIONS, "budget", "plan"), "which measures nothing"),
    ("plan", MEASURING_OPTIONS, "which says what to measure"),
    ("runs", ("budget",), "which were measured elsewhere"),
)
"""Option, options that are left out with it, and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a calibration goes: its name, its file, what an interrupted run keeps, whether the file may be replaced.

    ``shared``: what another process would write too: the output that was named, else what an interrupted run keeps.
    """

    name: str
    path: Path
    partial: Path
    force: bool
    shared: Path


def _begun(session: Session | None) -> tuple[Session, float]:
    """Return a session, and when this program began on its clock: the budget pays for loading too."""
    loading_s = 0.0 if session else time.process_time()
    session = session or Session(note, bar)
    return session, session.clock_s() - loading_s


def run(arguments: Mapping[str, Any], session: Session | None = None) -> None:
    """Calibrate: check everything that can be wrong first, then do it, one process for one output."""
    session, began_s = _begun(session)
    values = from_options(arguments)
    _check_supported(values, arguments, session)
    now = datetime.now().astimezone()
    target = _target_of(values, now)  # every rank of a launcher sees what is wrong with it
    rank = rank_here(value_of(values, "ranks")) if "links" in values else None
    if rank is not None and rank.rank > 0:
        take_part_here(rank, _device(values, session), value_of(values, "threads", 1))
        return
    check_writable("the calibration", target.path)
    cluster_out = Path(values["cluster_out"].value) if "cluster_out" in values else None
    if cluster_out:
        if cluster_out.suffix != ".toml" or not cluster_out.parent.is_dir() or cluster_out.stem == LOCAL:
            rule = f"a file whose name ends in .toml, in a folder that exists, not called {LOCAL}"
            raise ParameterError("--cluster-out", rule, str(cluster_out))
        check_replaceable(cluster_out, force=target.force)
    with held_alone("the calibration", target.shared):
        calibration, rows = _made(values, target, f"{now:%Y-%m-%d}", began_s, session, rank)
        _written(target, calibration, rows)
        seen = seen_cluster((calibration,)) if cluster_out else None
        if cluster_out and seen:
            cluster, sentence = with_measured_links(replace(seen, name=cluster_out.stem), calibration)
            write_file(cluster_out, write_cluster(cluster), target.force)
            session.say(f"{cluster_out}: {sentence}; --cluster {cluster_out} uses it")
        target.partial.unlink(missing_ok=True)  # only now: an interrupt while fitting must not cost the measurements
    if "json" in values:
        write_document(CALIBRATION.document(calibration))
    else:
        write_view(fit_view(calibration, str(target.path)))


def verify(arguments: Mapping[str, Any], session: Session | None = None) -> None:
    """Check everything that can be wrong, run the steps, compare, and write a calibration where one is wanted."""
    session, began_s = _begun(session)
    values = from_options(arguments)
    if "answer" not in values:
        raise ParameterError("ANSWER.json", "given", NOTHING, "name a document of 'planner suggest --json', or -")
    now = datetime.now().astimezone()
    target = _target_of(values, now) if "out" in values else None
    plan = kept_plan(values["answer"].value, value_of(values, "position"), "ANSWER.json")
    asking, predicted = asking_for(plan, values, session, is_kept=target is not None)
    budget_s = value_of(values, "budget", DEFAULT_BUDGET_S)
    (result,), enough = timed_here(asking, session, budget_s=budget_s, began_s=began_s)
    if result.step is None or target:
        runs = kept_runs(asking, (result,), enough, session.say)
    if target:
        _written(target, *with_runs(asking, runs, target.name, f"{now:%Y-%m-%d}"))
        session.say(f"{target.path}: the calibration with these steps; --calibration {target.path} uses it")
    elif result.is_disturbed:
        session.say(f"the machine was {result.slower:.2g} times slower than in quiet: measured times are too long")
    verified = compared(plan, asking, predicted, result)
    if "json" in values:
        write_document(verification_document(verified))
        return
    subject = plan.subject
    words = configuration_words(plan.configuration, subject.device, (), subject.settings.framework)
    write_view(verified_view(verified, f"{subject.network} on {subject.cluster}, {words}"))
    if not target:
        note("--out FILE.json adds these steps to the calibration")


def _written(target: Target, calibration: Calibration, rows: str) -> None:
    """Write a calibration, and beside it the rows of what was measured, where there are any."""
    target.path.parent.mkdir(parents=True, exist_ok=True)
    write_file(target.path, CALIBRATION.dump(calibration), target.force)
    if rows:
        write_file(samples_path(target.path), rows, target.force)


def _made(
    values: Values, target: Target, date: str, began_s: float, session: Session, rank: Rank | None
) -> tuple[Calibration, str]:
    """Return the calibration, and the text of a samples file of what was measured for it; empty: nothing."""
    if "samples" in values:
        return fitted_from_files(Path(values["samples"].value), target.name, session.say, values), ""
    calibrations, budget_s = listed(values, "calibration"), value_of(values, "budget", DEFAULT_BUDGET_S)
    if "runs" in values:
        place = values["plan"].value, value_of(values, "position")
        refined = refined_with_runs(place, values["runs"].value, calibrations, target.name, session.say)
        return dated(refined, date), ""
    if "plan" in values:
        asking = asking_of(values["plan"].value, calibrations, session)
        results, enough = timed_here(asking, session, budget_s=budget_s, began_s=began_s)
        return with_runs(asking, kept_runs(asking, results, enough, session.say), target.name, date)
    with kept_when_interrupted(target.partial, session.say):
        device, threads = _device(values, session), value_of(values, "threads", 1)
        if "links" in values:
            asked = Asked(rank, value_of(values, "ranks"), device, threads, began_s, budget_s)
            return links_here(asked, target.name, target.partial, session, date=date)
        networks = networks_of(listed(values, "network"), device)
        shards = shards_of(networks, listed(values, "tensor_parallel"))
        precisions, aim = listed(values, "precision"), value_of(values, "target_error")
        request = Request(budget_s, networks, precisions, aim, device, shards, threads)
        return fitted_here(request, target.name, target.partial, session, date=date, began_s=began_s)


def _check_supported(values: Values, arguments: Mapping[str, Any], session: Session) -> None:
    if "device" in values and values["device"].value != "cpu":
        session.check_gpu(values["device"].value)
    for beside, clashes, why in CLASHES:
        clash = next((name for name in clashes if name in values), None)
        if clash and beside in values:
            value = arguments[clash]
            text = OPTIONS[clash].flag if value is True else value if isinstance(value, str) else value[0]
            raise ParameterError(OPTIONS[clash].flag, f"left out with --{beside}, {why}", text)
    if "ranks" in values and "links" not in values:
        raise ParameterError("--ranks", "given with --links alone", values["ranks"].value)
    for name, beside in ("calibration", "plan"), ("runs", "plan"), ("position", "runs"):
        if name in values and beside not in values:
            given = values[name].value
            raise ParameterError(f"--{name}", f"given with --{beside} alone", given if name == "position" else given[0])
    for name in ("cluster", "nodes", "gpus_per_node"):
        if name in values and "samples" not in values:
            raise ParameterError(OPTIONS[name].flag, "given with --samples, to say of which links", arguments[name])


def _target_of(values: Values, now: datetime) -> Target:
    """Return where the calibration goes; an output that exists, or cannot, is refused before anything is measured."""
    out, force = _output(values), "force" in values
    default = "links" if "links" in values else "local"
    if "samples" in values:
        default = Path(values["samples"].value).resolve().name
    default = out.stem if out else default
    name = value_of(values, "name", re.sub(r"[^A-Za-z0-9_.+-]+", "-", default))
    if not _NAME.fullmatch(name):
        raise ParameterError("--name", "letters, digits and . _ + -", name)
    if len(name) > LONGEST_NAME or not name[0].isalnum():
        raise ParameterError("--name", f"of at most {LONGEST_NAME} characters, the first a letter or digit", name)
    said_twice = out is not None and "name" in values  # then a bundled one itself may be made again
    if name in catalog.names("calibrations") and not said_twice:
        raise ParameterError("--name", "a name of your own", name, "a bundled calibration has this one")
    if out is not None:
        return Target(name, out, _partial_of(out), force, out)
    folder = catalog.own_calibrations_folder()
    partial = folder.parent / "partial" / f"{name}.jsonl"
    return Target(name, catalog.own_calibration_file(name, now), partial, force, partial)


def _output(values: Values) -> Path | None:
    if "out" not in values:
        return None
    path = Path(values["out"].value)
    for file in (path, samples_path(path), _partial_of(path)) if path.name else ():
        check_replaceable(file, force=True)
    if not path.name or not path.parent.is_dir():
        raise OutputError(f"--out must be a file in a folder that exists, got {str(path)!r}")
    if path.suffix != ".json":
        better = path.with_suffix(".json")
        raise OutputError(f"--out must be a file whose name ends in .json, got {str(path)!r}; use {str(better)!r}")
    beside = () if "samples" in values or "runs" in values else (samples_path(path),)
    old = next((one for one in (path, *beside) if one.exists()), None)
    if old and "force" not in values:
        raise OutputError(f"--out must be a new file, got {str(old)!r}, which exists; use --force to replace it")
    return path


def _partial_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _device(values: Values, session: Session) -> str:
    """Return what is measured: a GPU if there is one, unless another device is asked for."""
    return str(values["device"].value) if "device" in values else session.default_device(session.say)
