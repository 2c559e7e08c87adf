"""``--task inference``: batches on one device, and the fewest replicas for a rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.cli import output
from planner.cli.options import OPTIONS
from planner.cli.streams import note
from planner.domain.axes import AXES
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import Batch
from planner.domain.request import DEFAULT, Sourced
from planner.errors import NOTHING, NothingFitsError, ParameterError
from planner.formats.summaries import inference_document
from planner.report.blocks import Block
from planner.report.prediction import place
from planner.report.studies import batches_view, gains_table, kernel_table, replicas_view
from planner.sessions.inputs import (
    DEFAULT_REQUEST,
    ENGINE,
    OPTION,
    Case,
    Values,
    cases,
    check_nodes,
    check_trainable,
    machine_of,
    merge,
    value_of,
)
from planner.sources.sources import Sources, why_not_precision
from planner.steps.inference import Inference, replicas_of
from planner.steps.kernel_rows import by_kind
from planner.units import format_duration

__all__ = ["predict", "suggest"]

_OF_REPLICAS = ("precision", "sub_batch", "nodes", "gpus_per_node")
"""Options of a plan that inference has too: replicas share nothing."""
_OF_TRAINING = (
    "brief", "choose", "deadline", "epochs", "limit", "mini_batch", "objective", "parallelism", "pareto", "search",
    "sensitivity", "tokens", "switches", "target_batch", "tolerance", "why_not",
)  # fmt: skip
"""Options of training alone, besides the axes of its plans."""
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Samples of a batch that suggest tries."""


def predict(values: Values, arguments: Mapping[str, Any]) -> None:
    """Write what batches take on one device, one a precision and size."""
    if "sub_batch" not in values:
        raise ParameterError("--sub-batch", "given", NOTHING, "say the samples of a batch, as in 1:64")
    for case in _cases(values):
        precisions = value_of(values, "precision", ("fp32",))
        batches = [batch for one in precisions for batch in _batches(case, one, values["sub_batch"].value)]
        view = [*batches_view(case.subject, batches, _memory(case)), *_gains(batches)]
        _write(case, [(batch, 1) for batch in batches], view, arguments)


def suggest(values: Values, arguments: Mapping[str, Any]) -> None:
    """Write the replicas that reach a rate within a latency on the fewest devices; NothingFitsError: none do."""
    for case in _cases(values):
        problem = case.problem
        most = max(value_of(values, "nodes", (problem.cluster.nodes,)))
        most *= max(value_of(values, "gpus_per_node", (problem.cluster.node.gpus,)))
        every = [
            batch
            for precision in value_of(values, "precision", _precisions(case))
            for batch in _batches(
                case, precision, value_of(values, "sub_batch", BATCHES), wants_all="sub_batch" in values
            )
        ]
        fitting = [one for one in every if sum(one.memory_bytes.values()) <= _memory(case)]
        latency, rate = value_of(values, "latency"), value_of(values, "rate")
        plans = replicas_of(fitting, most, latency, rate)
        if not plans:
            raise _nothing(case, fitting, most, latency, rate)
        top = plans[: value_of(values, "top", 5)]
        _write(case, top, list(replicas_view(case.subject, top, latency, rate, len(every))), arguments)


def _cases(values: Values) -> tuple[Case, ...]:
    """Return the cases of a request; ParameterError: an option is of training alone."""
    defaults = {axis.option: (axis.default,) for axis in AXES if axis.option not in _OF_REPLICAS}
    asked = {name: one for name, one in values.items() if name in defaults and one.source != DEFAULT_REQUEST}
    asked |= {name: one for name, one in values.items() if name in _OF_TRAINING and one.source == OPTION}
    for name, given in asked.items():
        if given.value != defaults.get(name):
            got = ",".join(map(str, given.value)) if isinstance(given.value, tuple) else "a value"
            raise ParameterError(OPTIONS[name].flag, "left out with --task inference", got)
    several = len(values["network"].value) > 1 or len(value_of(values, "scenario", ("",))) > 1
    if several and "json" in values:
        raise ParameterError("--json", "asked of one network and scenario with --task inference", "several")
    machine = machine_of(values, note)
    check_nodes(machine.cluster, values)
    engine: Values = {"framework": Sourced(ENGINE, DEFAULT)} if machine.cluster.node.accelerator.kind == "gpu" else {}
    found = cases(merge(values, engine), machine)
    check_trainable(values, (one.problem.network for one in found))
    return found


def _batches(case: Case, precision: str, sizes: Iterable[int], *, wants_all: bool = True) -> list[Batch]:
    """Return batches of sizes; those that are not lawful are left out, unless each is wanted."""
    inference = Inference(Sources(case.problem), precision)
    return [inference.batch(size) for size in sizes if wants_all or inference.allows(size)]


def _precisions(case: Case) -> tuple[str, ...]:
    """Return the precisions that the device has and something serves; fp8 in inference was measured nowhere."""
    sources = Sources(case.problem)
    return tuple(name for name in PRECISIONS if name != "fp8" and why_not_precision(sources, name) is None)


def _memory(case: Case) -> float:
    return case.problem.cluster.node.accelerator.memory_bytes


def _nothing(
    case: Case, batches: Sequence[Batch], gpus: int, latency: float | None, rate: int | None
) -> NothingFitsError:
    """Return that no batch, or no number of replicas, is enough, with the nearest."""
    where = place(case.subject)
    if not batches:
        return NothingFitsError(f"no batch of {where} fits in memory; take another device")
    fastest = min(batches, key=lambda one: one.latency_s)
    if latency is not None and fastest.latency_s > latency:
        took = format_duration(fastest.latency_s, 3)
        words = f"{fastest.precision} at batch {fastest.sub_batch} takes {took}"
        return NothingFitsError(
            f"no batch of {where} is done within {format_duration(latency, 3)}; the nearest: {words}"
        )
    within = [one for one in batches if latency is None or one.latency_s <= latency]
    best = max(within, key=lambda one: one.samples_per_s)
    reached = f"{best.samples_per_s * gpus:,.0f} samples/s in {best.precision} at batch {best.sub_batch}"
    needed = f"{rate:,} samples/s need {-(-(rate or 0) // best.samples_per_s):,.0f} GPUs of {case.problem.cluster.name}"
    return NothingFitsError(f"{needed}, which has {gpus}; the nearest: {reached}")


def _gains(batches: Sequence[Batch]) -> Iterable[Block]:
    """Return where other precisions gain at the largest batch that several have."""
    by_size: dict[int, dict[str, Mapping[str, float]]] = {}
    for one in batches:
        by_size.setdefault(one.sub_batch, {})[one.precision] = by_kind(one.kernels)
    sizes = [size for size, some in by_size.items() if len(some) > 1]
    return gains_table(by_size[max(sizes)], f"Batch {max(sizes)}") if sizes else ()


def _write(case: Case, plans: Sequence[tuple[Batch, int]], view: Sequence[Block], arguments: Mapping[str, Any]) -> None:
    if "json" in arguments:
        output.write_document(inference_document(case.subject, plans))
        return
    kernels: list[Block] = []
    if "verbose" in arguments:
        of_device = case.problem.cluster.node.accelerator.ridges
        for one, _ in plans:
            kernels += kernel_table(one.kernels, f"of a batch of {one.sub_batch} in {one.precision}", of_device)
    output.write_view([*view, *kernels])
