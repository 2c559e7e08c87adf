"""Calls of networks that are not timed as they are, and what to measure next: budget, command, or table of runs."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from planner import catalog
from planner.domain.axes import AXES
from planner.domain.calibration import Calibration, Gap
from planner.domain.job import PlanToStart, job_of
from planner.domain.kernels import DIRECTIONS, UPDATE
from planner.domain.network import LayerCall, Network
from planner.domain.precision import PRECISIONS
from planner.domain.request import Subject
from planner.domain.runs import Run
from planner.domain.samples import BUDGET, NETWORKS
from planner.domain.suggestion import Suggestion
from planner.errors import PlannerError
from planner.formats.documents import STANDARD_INPUT
from planner.formats.runs import write_runs
from planner.probes.layer_points import Extent, unmeasurable
from planner.scoring.gaps import CanMeasure
from planner.workload.calls import layer_calls

__all__ = [
    "DEFAULT_BUDGET_S", "Kernel", "can_be_measured", "enough_s", "grouped", "left_out", "measured_for", "measuring",
    "never_timed", "run_of_plan", "wanted_runs",
]  # fmt: skip

DEFAULT_BUDGET_S = 60.0
"""Of the time that ``planner calibrate`` takes [s]."""
Kernel = tuple[str, str]
"""Kind and direction."""
THREE_WAYS = frozenset(DIRECTIONS) - {UPDATE}


def left_out(calls: Sequence[LayerCall], networks: Sequence[Network], extent: Extent) -> Iterator[str]:
    """Yield a sentence for every layer with calls that are not measured: which, why, and what predicts them instead.

    Layers that are kept out in the same words share one. What is timed in fp32 alone is told with the other precisions.

    ``calls``: of the networks, each once.
    """
    kernels: dict[tuple[str, str, str], list[Kernel]] = {}
    most: dict[tuple[str, str, str], int] = {}
    for call in calls:
        reasons = {name: unmeasurable(call, extent, name) for name in extent.precisions}
        names = [name for name, reason in reasons.items() if reason]
        reason = next(filter(None, reasons.values()), None)
        if reason:
            key = _layer(call, networks), "" if "fp32" in names else f" in {', '.join(names)}", reason.words
            kernels.setdefault(key, []).append((call.kind, call.direction))
            most[key] = max(reason.needed_bytes, most.get(key, 0))
    alike: dict[str, list[str]] = {}
    for (layer, precisions, words), ways in kernels.items():
        several, mib = len(set(ways)) > 1, most[layer, precisions, words] / 2**20
        verb = f"{'have up to' if several else 'has'} {mib:,.0f} MiB" if mib else "are" if several else "is"
        alike.setdefault(f"{grouped(ways)}{precisions} {verb} {words}", []).append(layer)
    for what, layers in alike.items():
        more = f" (and {len(layers) - 1} more layer{'s' if layers[2:] else ''})" if layers[1:] else ""
        yield f"layer {layers[0]}{more}: {what}; not timed as in the network, but predicted by a fit to other kernels"


def never_timed(network: Network, extent: Extent, precision: str = "fp32") -> int:
    """Return how many calls of a network no budget is enough for in a precision."""
    calls = (call for of in layer_calls(network, optimizer=network.optimizer).values() for call in of)
    return sum(call.count for call in calls if call.kind != "bias" and unmeasurable(call, extent, precision))


def enough_s(budget_s: float) -> float:
    """Return the budget to try after one that was too short [s]: the default, or twice what was not below that."""
    return DEFAULT_BUDGET_S if budget_s < DEFAULT_BUDGET_S else 2 * budget_s


def _layer(call: LayerCall, networks: Sequence[Network]) -> str:
    owner = next((network.name for network in networks if call.layer in network.layers), "")
    return f"{call.layer.name} of {owner}" if owner else call.layer.name


def grouped(kernels: Iterable[Kernel]) -> str:
    """Return kinds and directions in words: kinds of the same directions together, these in brackets behind them."""
    ways: dict[str, set[str]] = {}
    for kind, direction in kernels:
        ways.setdefault(kind, set()).add(direction)
    kinds: dict[str, list[str]] = {}
    for kind, own in ways.items():
        text = "all three directions" if own >= THREE_WAYS else ", ".join(way for way in DIRECTIONS if way in own)
        kinds.setdefault("" if own == {kind} else f" ({text})", []).append(kind)  # an update has no direction
    return "; ".join(", ".join(alike) + text for text, alike in kinds.items()).replace("_", " ")


NEXT_NETWORKS = ("resnet50", "gpt")
"""Networks whose kernels a calibration made for none should know: one of convolutions, one of products."""


def measured_for(calibration: Calibration) -> tuple[Network, ...]:
    """Return the networks that a calibration was made for, those known here; of none, those of usual kernels."""
    networks: dict[str, Network] = {}
    for name in calibration.environment.get(NETWORKS, "").split("; "):
        with contextlib.suppress(PlannerError):
            networks[name] = catalog.find_network(name)
    return tuple(networks.values()) or tuple(catalog.find_network(name) for name in NEXT_NETWORKS)


def can_be_measured(calibration: Calibration) -> CanMeasure:
    """Return what tells which calls can be timed on the calibration's device; a GPU is taken to hold any.

    On a CPU in the precisions that the calibration was measured in: further ones take of the memory.
    """
    of_any_memory = Extent(operand_elements=sys.maxsize, elements=sys.maxsize, on_gpu=True)
    extent = of_any_memory if _is_gpu(calibration) else Extent(precisions=_precisions(calibration))
    return lambda call, precision: not unmeasurable(call, extent, precision)


def _precisions(calibration: Calibration) -> tuple[str, ...]:
    """Return the precisions that a calibration was measured in, fp32 first."""
    return tuple(
        dict.fromkeys(("fp32", *(one.precision for one in calibration.entries if one.precision in PRECISIONS)))
    )


def _is_gpu(calibration: Calibration) -> bool:
    return calibration.node is not None and calibration.node.accelerator.kind == "gpu"


def measuring(gaps: Iterable[Gap], calibration: Calibration) -> str:
    """Return the command that measures the kernels of gaps on the calibration's device.

    On a CPU in the precisions that it has. With more time where it was made for one of the networks: the same command
    would come to the same.
    """
    names = tuple(dict.fromkeys(gap.network for gap in gaps))
    networks = "".join(f" --network {name}" for name in names)
    more = ""
    if set(names) & set(calibration.environment.get(NETWORKS, "").split("; ")):
        budgets_s = re.findall(r"\d+", calibration.environment.get(BUDGET, ""))
        more = f" --budget {enough_s(max(map(float, budgets_s), default=DEFAULT_BUDGET_S)):.0f}s"
    others = ",".join(_precisions(calibration)[1:])
    device = "cuda" if _is_gpu(calibration) else f"cpu{f' --precision {others}' if others else ''}"
    return f"planner calibrate --device {device}{networks}{more}"


def wanted_runs(suggestion: Suggestion, subject: Subject) -> str:
    """Return the text of a runs file: a row a plan, its ``value`` to be filled in, its command in ``notes``.

    The runs that decide between tied plans; without any the plan to take. Empty where no plan fits, and where that one
    is asynchronous: steps of such plans correct no prediction.
    """
    plan = suggestion.chosen_plan
    chosen = (plan,) if plan and plan.prediction.configuration.mode == "sync" else ()
    starts = [one.to_start(subject) for one in suggestion.deciding_plans or chosen]
    rows = [run_of_plan(one, id=f"plan-{one.position}", metric="iteration_s", notes=job_of(one).line) for one in starts]
    return write_runs(rows) if rows else ""


def run_of_plan(plan: PlanToStart, **values: Any) -> Run:
    """Return a run of a plan; ``values``: what it is called, and what was measured."""
    subject, settings = plan.subject, plan.subject.settings
    of_plan: dict[str, Any] = {axis.name: getattr(plan.configuration, axis.name) for axis in AXES}
    of_plan |= {
        name: getattr(subject, name)
        if getattr(subject, f"{name}_option") in ("", STANDARD_INPUT)
        else getattr(subject, f"{name}_option")
        for name in ("network", "cluster")
    }
    of_plan |= {name: getattr(settings, name) for name in ("optimizer", "strategy", "input")}
    return Run(
        **of_plan | values,
        framework=settings.framework.name,
        framework_version=settings.framework.version,
        rank_order=plan.rank_order or (() if settings.chooses_order else settings.rank_order),
    )
