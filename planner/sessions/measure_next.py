"""What to measure next: for which networks, which calls can be timed there, and the command that does.

Of tied plans: a table of the runs that tell them apart, without their times.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable

from planner import catalog
from planner.domain.axes import AXES
from planner.domain.calibration import Calibration
from planner.domain.gap import Gap
from planner.domain.network import Network
from planner.domain.precision import PRECISIONS
from planner.domain.request import Subject
from planner.domain.runs import Run
from planner.domain.samples import BUDGET, NETWORKS
from planner.domain.suggestion import Plan, Suggestion
from planner.errors import PlannerError
from planner.formats.documents import STANDARD_INPUT
from planner.formats.runs import write_runs
from planner.probes.layer_points import Extent, unmeasurable
from planner.scoring.gaps import CanMeasure
from planner.sessions.left_out import DEFAULT_BUDGET_S, enough_s

__all__ = ["can_be_measured", "measured_for", "measuring", "wanted_runs"]

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
    rows = [_run(one, subject) for one in suggestion.deciding_plans or chosen]
    return write_runs(rows) if rows else ""


def _run(plan: Plan, subject: Subject) -> Run:
    settings = plan.subject(subject).settings
    axes = {axis.name: getattr(plan.prediction.configuration, axis.name) for axis in AXES}
    return Run(
        id=f"plan-{plan.position}",
        network=subject.network
        if subject.network_option == STANDARD_INPUT
        else subject.network_option or subject.network,
        cluster=subject.cluster,
        metric="iteration_s",
        framework=settings.framework.name,
        framework_version=settings.framework.version,
        optimizer=settings.optimizer,
        strategy=settings.strategy,
        input=settings.input,
        rank_order=plan.prediction.rank_order or (() if settings.chooses_order else settings.rank_order),
        notes=plan.start(subject),
        **axes,
    )
