"""What is bundled, for people: listings, and one network, cluster, calibration or framework with all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.domain.calibration import OF_PASSES, Calibration, Entry, Gap, MeasuredStep
from planner.domain.cluster import Accelerator, Cluster, Link
from planner.domain.framework import PARALLELISMS, STRATEGIES, Framework, Strategy
from planner.domain.kernels import LayerWork, WorkTotals
from planner.domain.network import LOOKED_UP, Network
from planner.domain.provenance import ConformalScore
from planner.domain.request import Dataset
from planner.domain.samples import COMMAND
from planner.report.blocks import Block, Line, Pairs, Table, given, heading, listing, title
from planner.report.parts import configuration_words, first_names, sources_once
from planner.units import format_bytes, format_count, format_rate, format_seconds

MOST_NAMES = 12
"""Names listed of what a calibration has seen."""


def networks_view(rows: Iterable[tuple[Network, WorkTotals]]) -> Iterator[Block]:
    """Yield one line a network; FLOP are of one sample, training is forward and backward."""
    cells: dict[str, Callable[[tuple[Network, WorkTotals]], str]] = {
        "name": lambda one: one[0].name,
        "input": lambda one: _shape(one[0].input_shape),
        "layers": lambda one: str(len(one[0].layers)),
        "para-\nmeters": lambda one: format_count(one[1].parameters),
        "forward\nFLOP": lambda one: format_count(2 * one[1].forward_mac),
        "training\nFLOP": lambda one: format_count(one[1].training_flop),
        "data set": lambda one: one[0].dataset or "-",
    }
    yield listing(rows, cells, [*cells][1:-1])


def network_view(
    network: Network, layers: Sequence[LayerWork], totals: WorkTotals, arguments: Mapping[str, str]
) -> Iterator[Block]:
    """Yield layers with shapes, parameters and FLOP, then totals; ``arguments`` maps each to its documentation."""
    yield title(f"{network.name}: input {_shape(network.input_shape)}")
    cells: dict[str, Callable[[LayerWork], str]] = {
        "layer": lambda one: one.name,
        "kind": lambda one: one.kind.replace("_", " "),
        "output": lambda one: _shape(one.shape),
        "parameters": lambda one: f"{one.parameters:,}" if one.parameters else "-",
        "forward FLOP": lambda one: f"{2 * one.forward_mac:,}" if one.forward_mac else "-",
    }
    yield listing(layers, cells, [*cells][2:])
    yield heading("Totals (per sample; a multiply-add is 2 FLOP)")
    figures = [
        ("layers", f"{len(network.layers)}"),
        ("parameters", f"{totals.parameters:,}"),
        *[("trained", f"{totals.trained:,}")] * (totals.trained < totals.parameters),
        ("forward", f"{2 * totals.forward_mac:,} FLOP ({totals.forward_mac:,} multiply-adds)"),
        ("forward and backward", f"{totals.training_flop:,} FLOP"),
        ("kernel calls", f"{totals.kernel_calls:,}"),
        ("data set", network.dataset or "none"),
        ("optimizer", network.optimizer),
        ("notes", network.notes),
        ("not modelled", " ".join(network.unmodelled)),
    ]
    yield given(figures)
    if arguments:
        yield heading("Arguments")
        yield Pairs(list(arguments.items()))


def _shape(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))


def clusters_view(clusters: Iterable[Cluster]) -> Iterator[Block]:
    """Yield one line a cluster."""
    cells: dict[str, Callable[[Cluster], str]] = {
        "name": lambda one: one.name,
        "nodes": lambda one: str(one.nodes),
        "GPUs": lambda one: str(one.node.gpus),
        "GPU": lambda one: one.node.accelerator.name,
        "between nodes": lambda one: _bandwidth(one.inter_node),
    }
    yield replace(listing(clusters, cells, ("nodes", "GPUs")), whole=("name", "GPU"))


def cluster_view(cluster: Cluster) -> Iterator[Block]:
    """Yield everything about one cluster."""
    yield title(cluster.name)
    node, storage = cluster.node, cluster.storage
    rows = [
        ("nodes", f"{cluster.nodes} x {node.gpus} {node.accelerator.name}"),
        ("host memory", format_bytes(node.host_memory_bytes) if node.host_memory_bytes else ""),
        ("CPU threads", str(node.cpu_threads or "")),
        ("inside a node", _link_line(cluster.intra_node)),
        ("between nodes", _link_line(cluster.inter_node)),
        ("host to GPU", _link_line(cluster.host)),
        ("price", f"{cluster.usd_per_gpu_hour:g} USD per GPU hour" if cluster.usd_per_gpu_hour is not None else ""),
    ]
    if storage:
        reach = "shared by all nodes" if storage.shared else "of each node"
        cache = f", cache {format_bytes(storage.cache_bytes)} a node" if storage.cache_bytes else ""
        rows.append(("storage", f"{format_rate(storage.read_bytes_per_s, 'B/s')} {reach}{cache}"))
    yield given(rows)
    yield from accelerator_view(node.accelerator, of_cluster=True)
    if cluster.sources:
        yield heading("Sources")
        yield Pairs(list(cluster.sources.items()))


def accelerators_view(accelerators: Iterable[Accelerator]) -> Iterator[Block]:
    """Yield one line an accelerator."""
    cells: dict[str, Callable[[Accelerator], str]] = {
        "name": lambda one: one.name,
        "memory": lambda one: format_bytes(one.memory_bytes),
        "bandwidth": lambda one: format_rate(one.memory_bytes_per_s, "B/s"),
        "fp32\nFLOP/s": lambda one: format_count(of["fp32"]) if "fp32" in (of := one.peak_flop_per_s) else "-",
        "other precisions": lambda one: ", ".join(name for name in one.peak_flop_per_s if name != "fp32") or "-",
    }
    yield listing(accelerators, cells, [*cells][1:4])


def accelerator_view(accelerator: Accelerator, *, of_cluster: bool = False) -> Iterator[Block]:
    """Yield everything about one accelerator, by itself or as a part of its cluster."""
    yield heading(f"Accelerator {accelerator.name}") if of_cluster else title(accelerator.name)
    rates = ", ".join(f"{name} {format_rate(rate, 'FLOP/s')}" for name, rate in accelerator.peak_flop_per_s.items())
    rows = [
        ("kind", accelerator.kind),
        ("memory", f"{format_bytes(accelerator.memory_bytes)}, {format_rate(accelerator.memory_bytes_per_s, 'B/s')}"),
        ("peak rates", rates),
        ("multiprocessors", str(accelerator.multiprocessors or "")),
        ("chip", " ".join(filter(None, (accelerator.vendor, accelerator.architecture, accelerator.chip)))),
        ("source", accelerator.source),
    ]
    yield given(rows)


def datasets_view(datasets: Iterable[Dataset]) -> Iterator[Block]:
    """Yield one line a data set."""
    cells: dict[str, Callable[[Dataset], str]] = {
        "name": lambda one: one.name,
        "samples": lambda one: f"{one.samples:,}",
        "bytes per sample": lambda one: f"{one.bytes_per_sample:,.10g}",
    }
    yield listing(datasets, cells, [*cells][1:])


def dataset_view(dataset: Dataset) -> Iterator[Block]:
    """Yield everything about one data set."""
    yield title(dataset.name)
    stored = f"as stored{dataset.encoding and ', '}{dataset.encoding}"
    rows = [
        ("samples", f"{dataset.samples:,}"),
        ("bytes per sample", f"{dataset.bytes_per_sample:,.10g} ({stored})"),
        ("size", format_bytes(dataset.samples * dataset.bytes_per_sample)),
        ("source", dataset.source),
    ]
    yield given(rows)


def _bandwidth(link: Link | None) -> str:
    if link is None:
        return "-"
    several = f"{link.nics_per_node} x " if link.nics_per_node > 1 else ""
    return f"{several}{format_rate(link.bytes_per_s, 'B/s')} {link.kind}"


def _link_line(link: Link | None) -> str:
    if link is None:
        return ""
    direct = {True: ", reads GPU memory", False: ", through the host", None: ""}[link.gpu_direct]
    adding = ", adds in switches" if link.in_network_reduction else ""
    return f"{_bandwidth(link)}, {format_seconds(link.latency_s)}{direct}{adding}"


def calibrations_view(bundled: Iterable[Calibration], own: Iterable[Calibration] = ()) -> Iterator[Block]:
    """Yield one line a calibration, those of the user behind the bundled ones."""
    columns, rows = ("name", "cluster or\naccelerator", "origin", "entries", "held-out\nerror"), []
    for mark, one in (*(("", one) for one in bundled), *((", own", one) for one in own)):
        errors = sorted(entry.held_out_error for entry in one.entries if entry.held_out_error is not None)
        ends = dict.fromkeys((0, len(errors) - 1)) if errors else ()
        span = " - ".join(f"{errors[end]:.0%}" for end in ends) or "-"
        rows.append((one.name, one.cluster or one.accelerator, one.origin + mark, str(len(one.entries)), span))
    yield Table(columns, rows, right=columns[3:])


def calibration_view(
    calibration: Calibration, formulas: Mapping[str, str], stored: CallWeights = lambda _: ()
) -> Iterator[Block]:
    """Yield where a calibration comes from, then every entry; ``formulas`` maps a term to its formula in words."""
    yield title(calibration.name)
    rows = [
        ("accelerator", calibration.accelerator),
        ("cluster", calibration.cluster or ""),
        ("node", f"{calibration.node.gpus} x {calibration.node.accelerator.name}" if calibration.node else ""),
        ("origin", calibration.origin),
        ("source", sources_once(calibration.source)),
        ("date", calibration.date),
        ("environment", _environment(calibration)),
        ("seen in fits", first_names(calibration.seen, MOST_NAMES)),
        *(("warning", one) for one in calibration.all_warnings),
    ]
    yield given(rows)
    if COMMAND in calibration.environment:
        yield Line("command")
        yield Line(calibration.environment[COMMAND], indent=2, whole=True)
    yield from _scores(calibration.conformal)
    yield Line(
        "\nA coefficient is in seconds per unit of its feature (calls: s, flop: s/FLOP, bytes: s/byte), host time in "
        "seconds per call or layer; scales, shares and exponents are mere numbers. Where the formula speaks of "
        "logarithms, a coefficient is the logarithm of seconds. One whose error is 'held at 0' would be negative but "
        "for the bound of the fit, and has no error."
    )
    for entry in calibration.entries:
        yield from entry_view(entry, formulas.get(entry.term, ""), stored(entry))
    yield from _measured_steps(calibration.measured_steps)


def _measured_steps(steps: Sequence[MeasuredStep]) -> Iterator[Block]:
    if not steps:
        return
    yield heading("Measured steps: what they take over what is predicted of them without")
    columns, rows = ("network", "cluster", "framework", "of", "plan", "runs", "factor"), []
    for one in steps:
        plan = one.configuration
        passes = ", ".join((f"sub-batch {plan.sub_batch}", plan.precision, *plan.besides))
        words = passes if one.of == OF_PASSES else configuration_words(plan)
        of = one.network, one.cluster or "-", one.framework, one.of
        rows.append((*of, words, f"{one.runs:,}", f"{one.factor:.4g}"))
    yield Table(columns, rows, right=columns[5:])


def _scores(scores: Mapping[str, ConformalScore]) -> Iterator[Block]:
    if not scores:
        return
    yield heading("Conformal intervals: ends are so many times the value, and one over that")
    columns = ("predictions", "times", "covers", "groups", "runs")
    if all(one.half_width is None for one in scores.values()):
        yield from (Line(reason) for reason in dict.fromkeys(one.reason for one in scores.values()))
        return
    alike: dict[ConformalScore, list[str]] = {}
    for kind, one in scores.items():
        alike.setdefault(one, []).append(kind.replace("_", " "))
    rows = []
    for one, kinds in alike.items():
        times = "-" if one.half_width is None else f"{math.exp(one.half_width):.2f}"
        rows.append((", ".join(kinds), times, f"{one.level:.0%}", f"{one.groups:,}", f"{one.rows:,}"))
    yield Table(columns, rows, right=columns[1:])
    for reason in dict.fromkeys(one.reason for one in scores.values() if one.reason):
        yield Line(f"- {reason}")


def _environment(calibration: Calibration) -> str:
    """Return the circumstances in a line, but the command, which has one of its own."""
    return ", ".join(f"{key} {value}" for key, value in calibration.environment.items() if key != COMMAND)


def fit_view(calibration: Calibration, path: str) -> Iterator[Block]:
    """Yield what a new calibration holds and how well it fits, and where it was written."""
    yield title(f"Calibration {calibration.name}: {path}")
    rows = [
        ("accelerator", calibration.accelerator),
        ("environment", _environment(calibration)),
        *(("warning", one) for one in calibration.all_warnings),
    ]
    yield given(rows)
    cells: dict[str, Callable[[Entry], str]] = {
        "entry": lambda one: f"{one.kind} {one.direction}".strip().replace("_", " "),
        "preci-\nsion": lambda one: one.precision,
        "term": lambda one: one.term,
        "rows": lambda one: f"{one.samples:,}",
        "held-out\nerror": lambda one: share(one.held_out_error) or "-",
        "worst": lambda one: "assumed" if is_assumed(one) else share(one.worst_error) or "-",
    }
    yield listing(calibration.entries, cells, [*cells][3:])
    yield from _measured_steps(calibration.measured_steps)


CallWeights = Callable[[Entry], Collection[str]]
"""Entry -> names of the coefficients that weigh stored calls."""


_SETTINGS = {
    "wait": " (spread of steps among what the link joins, as a share of their compute)",
    "socket_s_per_byte": " (what the host takes to send a byte without direct access, beside the link)",
}
"""Setting of pooled links -> what it says."""


def entry_view(entry: Entry, formula: str, call_weights: Collection[str]) -> Iterator[Block]:
    """Yield one entry of a calibration: its term, how good it is, where it is from, and its coefficients.

    Coefficients in ``call_weights`` weigh stored calls: hundreds that say nothing one by one, and are only counted.
    """
    yield heading(" ".join(filter(None, (*entry.key, entry.mode))).replace("_", " "))
    yield Line(f"{entry.term}: {formula}" if formula else entry.term)
    settings = []
    for key, value in entry.settings.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if isinstance(value, tuple):
            text = f"({', '.join(f'{one:g}' for one in value[:4])}{', ...' if len(value) > 4 else ''})"
        settings += [f"{key} {text}{_SETTINGS.get(key, '')}"] if value != "" else []
    held_out = share(entry.held_out_error)
    if held_out:
        held_out += f" by {entry.held_out_by}" if entry.held_out_by else ""
        held_out += f", of sums {entry.sum_error:.2%}" if entry.sum_error is not None else ""
        held_out += f", worst {entry.worst_error:.2%}" if entry.worst_error is not None else ""
    rows = [
        ("estimator", entry.estimator),
        ("samples", f"{entry.samples:,}" if entry.samples else ""),
        ("error", share(entry.error)),
        ("assumed error" if is_assumed(entry) else "held-out error", held_out),
        ("worst point", entry.worst_point),
        ("condition", f"{entry.condition_number:.3g}" if entry.condition_number is not None else ""),
        ("settings", ", ".join(settings)),
        ("fixed", ", ".join(entry.fixed)),
        ("points", f"{len(call_weights):,} stored calls, whose weights are in the file" if call_weights else ""),
        ("origin", ", ".join(filter(None, (entry.origin, sources_once(entry.source))))),
        ("notes", entry.notes),
    ]
    yield given(rows)
    columns = ("feature", "coefficient", "std. error", "least seen", "most seen")
    cells = []
    for name, value in entry.coefficients.items():
        if name not in call_weights:
            error, (low, high) = entry.standard_errors.get(name), entry.ranges.get(name, (None, None))
            sure, *seen = ("-" if one is None else f"{one:.3g}" for one in (error, low, high))
            # An error of 0 is none: the fit keeps the coefficient from going below.
            cells.append((name, f"{value:.4g}", "held at 0" if value == error == 0 else sure, *seen))
    yield Table(columns, cells, right=columns[1:])


def share(value: float | None) -> str:
    """Return a share in per cent; nothing of None."""
    return "" if value is None else f"{value:.2%}"


def is_assumed(entry: Entry) -> bool:
    """Tell whether the held-out error is assumed: of calls that were timed at too few sub-batches to leave one out."""
    return entry.term == LOOKED_UP and not entry.held_out_by and entry.held_out_error != entry.error


def frameworks_view(bundled: Iterable[Framework], own: Iterable[Framework] = ()) -> Iterator[Block]:
    """Yield one line a framework, those of the user behind the bundled ones."""
    columns, rows = ("name", "splits\nnetworks by", "shard-\nings", "switches"), []
    for mark, one in (*(("", one) for one in bundled), *((", own", one) for one in own)):
        kinds = "all" if set(one.can) == set(PARALLELISMS) else _joined(one.can)
        rows.append((one.name + mark, kinds, _joined(one.shardings), _joined(one.switches)))
    yield Table(columns, rows, whole=("name",))
    yield Line(f"\nall: {', '.join(PARALLELISMS)}. Switches are turned on by --framework NAME:switch+switch.")


def framework_view(framework: Framework, keys: Sequence[tuple[str, str, str, str]]) -> Iterator[Block]:
    """Yield everything about one framework; ``keys``: of its file, their values, what they mean, and sources of these.

    A source is empty where none is told.
    """
    yield title(framework.variant)
    yield given([("aliases", ", ".join(framework.aliases)), ("source", framework.source)])
    yield heading("What it does")
    yield Pairs([(key, f"{value}: {'; '.join(filter(None, words))}") for key, value, *words in keys])
    yield heading("Strategies of --strategy")
    sources = {name: framework.sources.get(f"strategies.{name}", "") for name in STRATEGIES}
    every = {**STRATEGIES, **framework.strategies}
    yield Pairs([(name, "; ".join(filter(None, (_strategy(one), sources[name])))) for name, one in every.items()])
    for version, changes in framework.versions.items():
        yield heading(f"Version {version}")
        yield given([(key, _value_words(value)) for key, value in changes.items()])
    for name, switch in framework.switches.items():
        yield heading(f"Switch {name}{', on' if name in framework.switched else ''}")
        rows = [
            *((key, _value_words(value)) for key, value in switch.changes.items()),
            *((key, ", ".join(getattr(switch, key))) for key in ("aliases", "needs", "excludes")),
            ("source", switch.source),
        ]
        yield given(rows)


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "-"


def _value_words(value: object) -> str:
    return _joined(value) if isinstance(value, (tuple, Mapping)) else str(value)


def _strategy(one: Strategy) -> str:
    if not one.overlap:
        sent = "gradients are sent after the backward pass"
    elif one.best_buckets:
        sent = "gradients are sent in those buckets that are done first"
    elif one.cycle_s:
        most = f"in messages up to {format_bytes(one.bucket_bytes)}" if one.bucket_bytes else "layer by layer"
        sent = f"gradients that are ready are sent every {1e3 * one.cycle_s:g} ms, {most}"
    elif one.servers:
        sent = "gradients of each layer are pushed to a server on each node, weights are pulled"
    elif one.bucket_bytes:
        sizes = (format_bytes(size) for size in (one.first_bucket_bytes, one.bucket_bytes))
        sent = "gradients are sent in buckets of {}, then {}".format(*sizes)
    else:
        sent = "gradients of each layer are sent as they become ready"
    return sent + (", input is loaded during the step before" if one.prefetch else ", input is not loaded ahead")


MOST_GAPS = 8
"""Kernels that are listed."""
REASON_WORDS = {"missing": "not measured", "outside": "outside the fit", "poor": "poor fit"}
"""Reason in words; any other says nothing more, and where none does there is no column for it."""


def gaps_view(gaps: Sequence[Gap], command: str) -> Iterator[Block]:
    """Yield the kernels whose expected error costs steps of networks most, and the command that measures them.

    Nothing without any.
    """
    if not gaps:
        return
    yield heading("What to measure next")
    cells: dict[str, Callable[[Gap], str]] = {
        "kernels": lambda gap: f"{gap.kind} {gap.direction}".strip().replace("_", " "),
        "preci-\nsion": lambda gap: gap.precision,
        "in a step of": lambda gap: gap.network,
        "share": lambda gap: f"{gap.share:.0%}",
        "off by": lambda gap: f"{gap.error:.0%}",
        "because": lambda gap: ", ".join(filter(None, (REASON_WORDS.get(gap.reason, ""), gap.detail))),
    }
    if not any(map(cells["because"], gaps[:MOST_GAPS])):
        del cells["because"]
    yield listing(gaps[:MOST_GAPS], cells, ("share", "off by"))
    more = f" ({len(gaps) - MOST_GAPS} more are not listed)" if gaps[MOST_GAPS:] else ""
    yield Line(f"Share of the kernel time times expected error decides the order{more}. All of them are measured by")
    yield Line(command, indent=2, whole=True)
