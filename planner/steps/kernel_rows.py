"""Kernels of a step one by one: work, time, and what the roofline says bounds them.

Roofline (Williams, Waterman, Patterson 2009): no kernel is done before max(FLOP / peak rate, bytes / bandwidth); the
two are equal at the ridge, peak rate over bandwidth [FLOP/byte]. One whose bound is shorter than starting it takes is
bound by its launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.costs.specified import ASSUMED_LAUNCH_S
from planner.costs.work import flop, moved_bytes
from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configuration, Configurations
from planner.domain.kernels import FORWARD, KernelCalls, KernelRow, class_of
from planner.domain.network import Network
from planner.domain.precision import precision_named
from planner.domain.prediction import LOSSY, PlanWarning
from planner.sources.source import Source
from planner.steps.compute import RankCompute, call_times_s, call_work
from planner.steps.predict import Evaluator
from planner.units import format_duration
from planner.workload.calls import lower
from planner.workload.shards import has_tensor_shards

MOST_LOSSES, LEAST_LOSS = 2, 0.005
"""Kinds of kernels that are told to be slower, and of what share of a step on."""


def kernel_rows(evaluator: Evaluator, configuration: Configuration) -> list[KernelRow]:
    """Return the kernels of one micro-batch and update on one rank of a plan, those of longest time first.

    None of groups that share single layers, each by a scheme of its own.
    """
    if configuration.tensor_parallel > 1 and not has_tensor_shards(evaluator.problem.network):
        return []
    plan = Configurations.of([configuration])
    pricer = evaluator.pricer_of(plan)
    rank = pricer.compute.ranks[int(pricer.ranks(plan)[0])]
    served = rank.calls_with_sources(plan.sub_batch)
    every = [one for stage, some in served.items() if stage != "accumulating" for one in some]
    return rows_of(rank, every, pricer.overheads.scales)


def rows_of(
    rank: RankCompute, served: Iterable[tuple[KernelCalls, Source]], scales: FloatArray | None = None
) -> list[KernelRow]:
    """Return calls of one sub-batch, those of longest time first; ``scales``: of the times of CLASSES."""
    every = [row for calls, source in served for row in _rows(rank, calls, source, scales)]
    return sorted(every, key=lambda row: -row.seconds)


def _rows(rank: RankCompute, calls: KernelCalls, source: Source, scales: FloatArray | None) -> Iterator[KernelRow]:
    device, names = rank.sources.accelerator, rank.network.layers
    scale = 1.0 if scales is None else float(scales[class_of(calls.kind)])
    seconds = scale * call_times_s(source.entry, calls, rank.itemsize)[0]
    precision = rank.precision.name if source.entry.precision in ("", "any") else source.entry.precision
    peak = device.peak_flop_per_s.get(precision, 0.0)
    for at, one in enumerate(_each(calls, precision, rank.itemsize)):
        roof = max(one.flop / peak if peak else 0.0, one.bytes / device.memory_bytes_per_s)
        bound = "compute" if peak and one.flop / peak >= roof else "memory"
        bound = "launch" if one.calls and roof / one.calls < ASSUMED_LAUNCH_S else bound
        if one.calls:
            layer = names[int(calls.layer[at])].name
            yield replace(one, layer=layer, seconds=float(seconds[at]), roof_s=roof, bound=bound)


def _each(calls: KernelCalls, precision: str, itemsize: int) -> Iterator[KernelRow]:
    """Yield calls of the first sub-batch one by one, without times and names."""
    sizes = precision_named(precision)
    is_narrow = sizes.measured_only and not calls.looked_up
    plain = call_work(calls, sizes.weight_bytes if is_narrow else itemsize)
    if calls.looked_up:
        plain = {**calls.work, "itemsize": float(itemsize)}
    shape = calls.layer.shape
    amounts = [
        np.broadcast_to(np.atleast_2d(one)[0], shape)
        for one in (calls.count, flop(plain, calls.direction), moved_bytes(plain, calls.direction))
    ]
    work = {name: np.broadcast_to(np.atleast_2d(column)[0], shape) for name, column in calls.work.items()}
    for at, (count, of_flop, of_bytes) in enumerate(zip(*(one.tolist() for one in amounts), strict=True)):
        words = _shape({name: int(column[at]) for name, column in work.items()})
        yield KernelRow(calls.kind, calls.direction, precision, "", words, count, count * of_flop, count * of_bytes)


def _shape(work: Mapping[str, int]) -> str:
    """Return the sizes of a call: m x n x k of products; input, then channels and kernel of convolutions."""
    if "m" in work:
        batch = f"{work['batch']}*" if work["batch"] > 1 else ""
        return f"{batch}{work['m']}x{work['n']}x{work['k']}"
    if "in_c" in work:
        stride = f"/{work['stride_h']}" if work["stride_h"] > 1 else ""
        groups = f" g{work['groups']}" if work["groups"] > 1 else ""
        kernel = f"{work['out_c']}x{work['k_h']}x{work['k_w']}{stride}{groups}"
        return f"{work['images']}x{work['in_c']}x{work['in_h']}x{work['in_w']} {kernel}"
    if "queries" in work:
        return f"{work['batch']}*{work['queries']}x{work['keys']}x{work['width']}"
    return f"{work['elements']:,}"


def work_rows(network: Network, sub_batch: int = 1) -> list[KernelRow]:
    """Return the kernels of a step in fp32 by work alone, in the order of kinds and directions."""
    calls = lower(network, np.array([sub_batch]), optimizer=network.optimizer)
    rows = []
    for some in calls:
        layers = [network.layers[at].name for at in some.layer.tolist()]
        rows += [replace(row, layer=layer) for layer, row in zip(layers, _each(some, "fp32", 4), strict=True)]
    return rows


def lossy_warning(evaluator: Evaluator, plan: Configuration, what: str, precision: str) -> PlanWarning:
    """Return what a plan would take in a precision that loses accuracy, and what is slower there than in its own.

    ``what``: the plan in words.
    """
    both = [plan, replace(plan, precision=precision)]
    wide_s, narrow_s = (float(evaluator.evaluate(Configurations.of([one])).iteration_s[0]) for one in both)
    wide, narrow = (by_kind(kernel_rows(evaluator, one)) for one in both)
    more = sorted(((narrow[kind] - wide.get(kind, 0.0), kind) for kind in narrow), reverse=True)
    slower = [
        f"{'casts' if kind == 'copy' else kind.replace('_', ' ')} {format_duration(seconds, 2)}"
        for seconds, kind in more[:MOST_LOSSES]
        if seconds > LEAST_LOSS * wide_s
    ]
    ratio, longer = narrow_s / wide_s, narrow_s > wide_s
    gain = f"{ratio:.2f} times as long as {plan.precision}" if longer else f"{1 / ratio:.2f} times as fast"
    why = f"; there it adds: {', '.join(slower)}" if slower else ""
    words = f"Training in {precision} is research and lossy, chosen with --allow-lossy alone: {what} would take "
    words += f"{format_duration(narrow_s, 3)} a step, {gain}, as gradients of weights stay in 16 bits{why}."
    return PlanWarning(LOSSY, precision, words)


def by_kind(rows: Iterable[KernelRow]) -> dict[str, float]:
    """Return the seconds of kernels by kind, and of convolutions and products by pass, those of longest time first."""
    seconds: dict[str, float] = {}
    for row in rows:
        name = f"{row.kind} {row.direction}" if class_of(row.kind) < 2 and row.direction != FORWARD else row.kind
        seconds[name] = seconds.get(name, 0.0) + row.seconds
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
