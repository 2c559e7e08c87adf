"""What is timed inside a process: one work after its preparation, with the fixed workload before and behind it.

    PYTHONPATH=TREE python benchmarks/works.py NAME '{"argument": value}'

prints one JSON line of seconds of the processor: ``cpu_s`` of the work, ``fixed_s`` of the fixed workload, and
``peak_bytes``, the most memory that the process has held. TREE may be an older commit: every work imports what it needs
itself, and no more than that. Where ``planner`` moves what a work uses, the new place goes before the old one in
``_first``.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["WORKS", "fixed_cpu_s", "timed"]

Work = Callable[[], object]
PASSES, DOUBLES = 300, 1 << 16
CONVOLUTION_CLASSES = (
    "calls", "flop_3x3", "flop_1x1", "flop_1x1_strided", "flop_other", "x_bytes", "w_bytes", "y_bytes", "im2col_bytes",
    "padded_flop", "y_bytes_few_channels",
)  # fmt: skip
"""Coefficients of the term ``convolution.classes``."""
RUNS = Path(__file__).parent.parent / "tests" / "data" / "formats" / "runs" / "v1" / "example.csv"


def fixed_cpu_s() -> float:
    """Return the time of PASSES passes of multiply, add, maximum and remainder over DOUBLES doubles [s]."""
    a, b = np.linspace(0, 1, DOUBLES), np.linspace(1, 2, DOUBLES)
    start = time.process_time()
    for _ in range(PASSES):
        a = np.maximum(a * b + 0.25, 0.5) % 1.0
    return time.process_time() - start


def timed(work: Work, clock: Callable[[], float] = time.process_time) -> dict[str, float]:
    """Return ``cpu_s`` of a work by a clock, and ``fixed_s``, the mean of the fixed workload before and behind it."""
    before = fixed_cpu_s()
    start = clock()
    work()
    cpu_s = clock() - start
    return {"cpu_s": cpu_s, "fixed_s": (before + fixed_cpu_s()) / 2}


def peak_resident_bytes() -> float:
    """Return the most memory that this process has held [bytes].

    From /proc where there is one: the resource usage of a process there begins with that of its parent at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return float(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def plans(*, network: str, cluster: str, axes: Mapping[str, Sequence[int]], precisions: Sequence[str]) -> Work:
    """Price the product of ``axes`` (first and last value of each), synthetic input, all tables included."""
    catalog = import_module("planner.catalog")
    evaluator = _first(("planner.steps.predict", "Evaluator"))
    problem, settings = (
        _first(("planner.domain.request", "Problem")),
        _first(("planner.domain.configuration", "Settings")),
    )
    found = catalog.find_cluster(cluster)
    task = problem(
        catalog.find_network(network),
        None,
        found,
        catalog.calibrations_for(found),
        settings=settings(input="synthetic"),
    )
    every = _product(axes, precisions)
    return lambda: evaluator(task).evaluate(every)


def split_plans(*, network: str, cluster: str, precision: str, mini_batch: int) -> Work:
    """Work out the memory of all lawful plans of a mini-batch, and price those that fit: without bounds, with tables.

    Degrees, sharding, recompute and micro-batches vary, and nodes follow from them.
    """
    catalog = import_module("planner.catalog")
    problem, evaluator = _first(("planner.domain.request", "Problem")), _first(("planner.steps.predict", "Evaluator"))
    settings = _first(("planner.domain.configuration", "Settings"))(optimizer="adam", input="synthetic")
    place = catalog.find_cluster(cluster)
    task = problem(catalog.find_network(network), None, place, catalog.calibrations_for(place), settings=settings)
    rows = _split_rows(task, precision, mini_batch)
    needed = _needed(task, precision)

    def work() -> object:
        fits = needed(rows) <= place.node.accelerator.memory_bytes
        return fits.size, evaluator(task).evaluate(rows.take(fits))

    return work


def _needed(task: Any, precision: str) -> Any:
    """Return what works out the memory of plans; older trees counted transformers apart."""
    of = _first(("planner.workload.memory_rules", "MemoryRules")).of
    rules = of(precision, task.settings.optimizer, task.settings.framework, task.settings.placed_by)
    module = import_module("planner.workload.memory")
    if hasattr(module, "Memory"):
        return module.Memory(task.network, rules).totals
    older = _first(("planner.workload.split_fit", "fullest_bytes"))
    return lambda plans: older(task.network.transformer, plans, rules)


def split_space(
    *, network: str, cluster: str, framework: str, precision: str, nodes: Sequence[int], mini_batch: int, within: float
) -> Work:
    """Make every candidate of a transformer's space, work out its memory, and price those that fit: without bounds."""
    catalog = import_module("planner.catalog")
    problem, asked = _first(("planner.domain.request", "Problem")), _first(("planner.domain.request", "SpaceRequest"))
    settings, place = _first(("planner.domain.configuration", "Settings")), catalog.find_cluster(cluster)
    of = settings(optimizer="adam", input="synthetic", framework=catalog.find_framework(framework))
    task = problem(catalog.find_network(network), None, place, catalog.calibrations_for(place), settings=of)
    request = asked(mini_batch).changed(nodes=tuple(nodes), precision=(precision,), tolerance_sync=within)
    order, limits = _first(
        ("planner.search.searchable", "order_and_limits"), ("planner.search.allowed", "order_and_limits")
    )(task, request)
    plans, evaluator = (
        _first(("planner.search.exhaustive", "lawful_plans")),
        _first(("planner.steps.predict", "Evaluator")),
    )
    together = getattr(import_module("planner.search.exhaustive"), "Asked", None)

    def work() -> int:
        of = request, limits, evaluator(task), order
        return sum(some.size for some in plans(*([together(*of)] if together else of)))

    return work


def _split_rows(task: Any, precision: str, mini_batch: int) -> Any:
    """Return the lawful plans of a problem, rows."""
    of, lawful = (
        _first(("planner.domain.configuration", "Configurations")),
        _first(("planner.workload.lawful", "is_lawful")),
    )
    place = task.cluster
    stages = _first(("planner.workload.lawful", "most_stages"))(task.network)
    powers = 2 ** np.arange(int(np.log2(mini_batch)) + 1)
    values = {
        "nodes": powers,
        "sub_batch": powers[:6],
        "accumulation_steps": powers,
        "tensor_parallel": np.array([1, 2, 4, 8]),
        "pipeline_parallel": np.arange(2, stages + 1),
        "virtual_stages": np.array([1, 2]),
        "sequence_parallel": np.arange(2),
        "sharding": np.arange(4),
        "recompute": np.arange(3),
    }
    # Of a mini-batch and degrees the nodes follow: copies = mini-batch / (sub-batch x accumulation).
    names = [name for name in values if name != "nodes"]
    columns = dict(zip(names, (one.ravel() for one in np.meshgrid(*(values[n] for n in names))), strict=True))
    samples = columns["sub_batch"] * columns["accumulation_steps"]
    gpus = mini_batch // samples * columns["tensor_parallel"] * columns["pipeline_parallel"]
    nodes = gpus // place.node.gpus
    fits = (samples <= mini_batch) & (gpus % place.node.gpus == 0) & (nodes >= 1) & (nodes <= place.nodes)
    columns = {name: one[fits] for name, one in (columns | {"nodes": nodes}).items()}
    size = columns["nodes"].size
    same = {"gpus_per_node": np.full(size, place.node.gpus), "precision": np.zeros(size, dtype=np.int64)}
    rows = of(**columns, **same, mode=np.zeros(size, dtype=np.int64), precisions=(precision,))
    return rows.take(lawful(task.network, task.settings.framework, rows))


def _product(axes: Mapping[str, Sequence[int]], precisions: Sequence[str]) -> Any:
    spans = [np.arange(axes[name][0], axes[name][1] + 1) for name in ("nodes", "gpus", "sub_batch", "accumulation")]
    of = _first(("planner.domain.configuration", "Configurations"))
    if hasattr(of, "product"):
        names = ("nodes", "gpus_per_node", "sub_batch", "accumulation_steps", "precision", "mode")
        values = zip(names, (*spans, np.arange(len(precisions)), np.zeros(1, dtype=np.int64)), strict=True)
        return of.product(dict(values), tuple(precisions))
    grid = np.meshgrid(*spans, np.arange(len(precisions)), indexing="ij")
    nodes, gpus, sub_batch, steps, precision = (one.ravel() for one in grid)
    return of(nodes, gpus, sub_batch, steps, precision, np.zeros_like(nodes), precisions=tuple(precisions))


def shapes(*, network: str, times: int) -> Work:
    """Build a network of the zoo and the shapes of its layers."""
    build, layer_shapes = (
        _first(("planner.networks.zoo", "build")),
        _first(("planner.domain.network", "layer_shapes"), ("planner.domain.shapes", "layer_shapes")),
    )
    return lambda: [layer_shapes(build(network, {})) for _ in range(times)]


def lowering(*, network: str, sub_batches: int, times: int) -> Work:
    """Lower a network at sub-batches 1 to ``sub_batches``."""
    lower = _first(("planner.workload.calls", "lower"))
    built, every = _first(("planner.networks.zoo", "build"))(network, {}), np.arange(1, sub_batches + 1)
    return lambda: [lower(built, every) for _ in range(times)]


def convolutions(*, layers: int, sub_batches: int, times: int) -> Work:
    """Evaluate one term for convolutions of ``layers`` sizes at sub-batches 1 to ``sub_batches``."""
    evaluate, entry_of = _first(("planner.costs.terms", "evaluate")), _first(("planner.domain.calibration", "Entry"))
    sizes = np.arange(1, layers + 1)
    images = np.arange(1, sub_batches + 1)[:, None]
    work: dict[str, Any] = {"images": images, "in_c": 2 * sizes, "out_c": 4 * sizes, "groups": 2, "itemsize": 4}
    work |= {"in_h": 7, "in_w": 7, "k_h": 3, "k_w": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1}
    coefficients = dict.fromkeys(CONVOLUTION_CLASSES, 1e-12)
    entry = entry_of("kernels", "convolution", "forward", "fp32", "", "convolution.classes", {}, coefficients)
    return lambda: [evaluate(entry, work) for _ in range(times)]


def scoring(*, rows: int) -> Work:
    """Score so many rows of a validation, with twelve terms."""
    score, row = _first(("planner.scoring.evaluate", "score")), _first(("planner.domain.runs", "ScoredRow"))
    random = np.random.default_rng(6)
    rest = (0.9, 1.3, 1.0, "ok", "ok", False, None)  # by place: the last, why it was refused, has changed its name
    made = [
        row("r", 2, "iteration_s", predicted, *rest, f"n{at % 50}", "one", source=f"s{at}", group=f"g{at // 4}")
        for at, predicted in enumerate(random.uniform(0.5, 2.0, rows).tolist())
    ]
    shares = random.dirichlet(np.ones(12), rows)
    return lambda: score(made, [f"t{at}" for at in range(12)], shares)


def runs_file(*, rows: int, folder: str) -> Work:
    """Read a table of so many runs, written into ``folder``."""
    read_runs = _first(("planner.formats.runs", "read_runs"))
    header, *some = RUNS.read_text().splitlines()[1:]
    path = Path(folder) / "many.csv"
    path.write_text("\n".join([header, *(f"{at}{some[at % len(some)]}" for at in range(rows))]))
    return lambda: read_runs(path)


def _first(*places: tuple[str, str]) -> Any:
    """Return what stands at the first of the places (module, name) that this tree has."""
    for module, name in places:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"this tree has none of {', '.join('.'.join(place) for place in places)}")


WORKS: Mapping[str, Callable[..., Work]] = {
    one.__name__: one for one in (plans, split_plans, split_space, shapes, lowering, convolutions, scoring, runs_file)
}


def main() -> None:
    """Time the work that the command line names, and print."""
    name, given = sys.argv[1:]
    work = WORKS[name](**json.loads(given))
    found = timed(work)
    sys.stdout.write(json.dumps(found | {"peak_bytes": peak_resident_bytes()}) + "\n")


if __name__ == "__main__":
    main()
