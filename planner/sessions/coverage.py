"""Whether a calibration, or what was measured for one, serves the networks it is for; else what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from planner.domain.calibration import Calibration
from planner.domain.calls import LOOKED_UP
from planner.domain.cluster import Cluster, Node
from planner.domain.configuration import Settings
from planner.domain.kernels import DIRECTIONS, SERVED_BY, TRAFFIC_KINDS
from planner.domain.request import Problem
from planner.errors import CoverageError
from planner.probes.calibrate import Measurement
from planner.probes.layer_points import Extent
from planner.probes.steps import STEP_PRECISIONS
from planner.sessions.left_out import Kernel, enough_s, grouped, never_timed
from planner.sessions.request import Request, trained
from planner.sessions.values import Say
from planner.sources.source import is_used
from planner.sources.sources import Sources
from planner.workload.lowering import lower

__all__ = ["check_complete", "check_served", "check_started"]


def check_started(measurement: Measurement, request: Request, say: Say) -> None:
    """Refuse measurements that cannot be fitted: the whole budget did not suffice for the points that come first."""
    missing: dict[str, dict[Kernel, None]] = {}
    for point in measurement.missing:
        precision = "fp32" if point.kind in TRAFFIC_KINDS else point.precision
        missing.setdefault(precision, {})[point.kind, point.direction] = None
    networks = "the networks" if request.networks else "the bundled networks"
    _check_none(f"a calibration must hold every kernel of {networks}", missing, request, say)


def check_served(
    calibration: Calibration, node: Node, request: Request, say: Say, precisions: Sequence[str] = STEP_PRECISIONS[:1]
) -> None:
    """Refuse a calibration that serves no step of the networks; say how many of their calls were left to fits.

    In 8 bits there are no steps, only products: steps of the other precisions are looked at.

    Parameters
    ----------
    calibration : Calibration
    node : Node
    request : Request
    say : callable
    precisions : sequence of str
        That were measured; of those that nobody asked for, what is missing is said.

    Raises
    ------
    CoverageError
        Names what is missing in fp32 or in a precision that was asked for, and the budget that suffices; what was
        measured is kept.
    """
    missing: dict[str, dict[Kernel, None]] = {}
    fits, total, hopeless = 0, 0, 0
    obligatory = request.needed
    for precision, network in itertools.product(trained((*obligatory, *precisions)), request.all_networks):
        settings = Settings(optimizer=network.optimizer)
        cluster = Cluster("local", 1, node)
        sources = Sources(Problem(network, None, cluster, (calibration,), explicit_calibration=True, settings=settings))
        own = sources.layer_calls(precision)
        if precision in obligatory and node.accelerator.kind == "cpu":
            hopeless += never_timed(network, Extent(precisions=tuple(precisions)), precision)
        for calls in lower(network, np.ones(1, dtype=np.int64), optimizer=network.optimizer):
            for part, source in own.split(calls, np.ones(1, dtype=np.int64)):
                is_left = source is None and SERVED_BY.get(part.kind, part.kind) != "bias"
                if precision in obligatory:
                    fits, total = (
                        fits + is_left * int(part.count.sum()),
                        total + int(part.count.sum()),
                    )
                if is_left and not sources.is_calibrated(part.kind, part.direction, precision):
                    missing.setdefault(precision, {})[part.kind, part.direction] = None
    _check_none("a calibration must hold every kernel of the networks", missing, request, say)
    if fits > hopeless:
        enough = f"--budget {enough_s(request.budget_s):.0f}s"
        say(f"{fits} of the {total} calls of the networks are left to fits; with {enough} more of them are timed")


def _check_none(rule: str, missing: Mapping[str, Iterable[Kernel]], request: Request, say: Say) -> None:
    """Refuse what is missing in a precision that is needed; say what is in others."""
    obligatory = request.needed
    refusals = {name: kernels for name, kernels in missing.items() if name in obligatory}
    if refusals:
        raise CoverageError(_too_few(rule, refusals, request))
    for name, kernels in missing.items():
        budget_s = enough_s(request.budget_s)
        say(f"{name} has too few timings of {grouped(kernels)} for predictions; --budget {budget_s:.0f}s takes more")


def _too_few(rule: str, missing: Mapping[str, Iterable[Kernel]], request: Request) -> str:
    by_precision = (f"{grouped(kernels)}{'' if name == 'fp32' else f' in {name}'}" for name, kernels in missing.items())
    return (
        f"{rule}, got too few timings of {'; '.join(by_precision)}; what was measured is kept, and the same command "
        f"with --budget {enough_s(request.budget_s):.0f}s goes on from there"
    )


def check_complete(
    calibration: Calibration,
    kernels: Sequence[Kernel],
    request: Request,
    say: Say,
    precisions: Sequence[str] = STEP_PRECISIONS[:1],
) -> None:
    """Refuse a calibration without every kernel of the bundled networks: it would serve none of them.

    ``kernels``: these kernels. Other parameters and errors are those of :func:`check_served`.
    """
    keys = {
        (one.kind, way, one.precision)
        for one in calibration.entries
        for way in ((one.direction,) if one.direction else DIRECTIONS)
        if one.term != LOOKED_UP and (is_used(one) or one.kind in TRAFFIC_KINDS)  # for what moves bytes others serve
    }
    gaps = {
        name: [pair for pair in kernels if not {(*pair, name), (*pair, "any")} & keys]
        for name in trained((*request.needed, *precisions))
    }
    missing = {name: pairs for name, pairs in gaps.items() if pairs}
    _check_none("a calibration must hold every kernel of the bundled networks", missing, request, say)
