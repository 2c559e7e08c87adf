"""What ``planner calibrate`` is asked to measure, and whether a calibration serves that; else what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner import catalog
from planner.domain.calibration import Calibration
from planner.domain.calls import LOOKED_UP
from planner.domain.cluster import Cluster, Node
from planner.domain.configuration import Configurations, Settings
from planner.domain.kernels import DIRECTIONS, SERVED_BY, TRAFFIC_KINDS
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.errors import NOTHING, CoverageError, ParameterError
from planner.probes.calibrate import Measurement
from planner.probes.gpu import describe_gpu
from planner.probes.layer_points import SMALL_SUB_BATCH, Extent
from planner.probes.machine import describe_cpu
from planner.probes.steps import STEP_PRECISIONS
from planner.sessions.inputs import Say
from planner.sessions.measure_next import Kernel, enough_s, grouped, never_timed
from planner.sources.source import is_used
from planner.sources.sources import Sources
from planner.units import format_bytes
from planner.workload.lowering import lower
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.shards import has_tensor_shards, tensor_shard

__all__ = [
    "Request", "check_complete", "check_served", "check_started", "needed_bytes", "networks_of", "shards_of", "trained",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured.

    Attributes
    ----------
    target_error : time up
    """

    budget_s: float
    networks: tuple[Network, ...] = ()
    precisions: tuple[str, ...] = ()
    target_error: float | None = None
    device: str = "cpu"
    shards: tuple[Network, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """Precisions without whose steps a calibration is refused."""
        return trained(("fp32", *self.precisions))

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """Networks and shards: whose calls are timed."""
        return (*self.networks, *self.shards)


def trained(precisions: Iterable[str]) -> tuple[str, ...]:
    """Return those that training steps are timed in, each once."""
    return tuple(one for one in dict.fromkeys(precisions) if one in STEP_PRECISIONS)


def networks_of(names: Iterable[str], device: str = "cpu") -> tuple[Network, ...]:
    """Return the networks whose own layers are to be measured, each once; refuse one that the device cannot hold."""
    networks = tuple(catalog.find_network(name) for name in dict.fromkeys(names))
    if not networks:
        return ()
    own = describe_cpu()[0] if device == "cpu" else describe_gpu(device, catalog.known_accelerator).accelerator
    for network in networks:
        bytes_needed = needed_bytes(network, own.kind)
        if bytes_needed > own.memory_bytes:
            memory, at = format_bytes(own.memory_bytes), f"at a sub-batch of {SMALL_SUB_BATCH}"
            rule = f"a network that fits the {memory} of this machine {at}"
            raise ParameterError("--network", rule, f"{network.name}, which needs {format_bytes(bytes_needed)}")
    return networks


def shards_of(networks: Sequence[Network], degrees: Sequence[int]) -> tuple[Network, ...]:
    """Return a rank's shard of every network with attention, of each tensor-parallel degree."""
    if degrees and not networks:
        raise ParameterError("--network", "given beside --tensor-parallel", NOTHING, "name the networks to be split")
    split = [network for network in networks if has_tensor_shards(network)] or networks
    return tuple(tensor_shard(network, degree) for network in split for degree in degrees if degree > 1)


def needed_bytes(network: Network, kind: str) -> float:
    """Return the bytes of a network at the small sub-batch, on a device of a kind."""
    ledger = Memory(network, MemoryRules.of("fp32", network.optimizer, device_kind=kind))
    return float(ledger.fullest(Configurations.having(sub_batch=SMALL_SUB_BATCH)).total)


def check_started(measurement: Measurement, request: Request, say: Say) -> None:
    """Refuse measurements that cannot be fitted: the whole budget did not suffice for the points that come first."""
    missing: dict[str, dict[Kernel, None]] = {}
    for point in measurement.missing:
        precision = "fp32" if point.kind in TRAFFIC_KINDS else point.precision
        missing.setdefault(precision, {})[point.kind, point.direction] = None
    networks = "the networks" if request.networks else "the bundled networks"
    _check_none(f"a calibration must hold every kernel of {networks}", missing, request, say)


def check_served(
    calibration: Calibration, node: Node, request: Request, say: Say, precisions: Sequence[str] = ("fp32",)
) -> None:
    """Refuse a calibration that serves no step of the networks; say how many of their calls were left to fits.

    In 8 bits there are no steps, only products: steps of the other precisions that were measured are looked at.
    CoverageError: names what is missing in fp32 or in a precision that was asked for, and the budget that suffices.
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
                    count = int(part.count.sum())
                    fits, total = fits + is_left * count, total + count
                if is_left and not sources.is_calibrated(part.kind, part.direction, precision):
                    missing.setdefault(precision, {})[part.kind, part.direction] = None
    _check_none("a calibration must hold every kernel of the networks", missing, request, say)
    if fits > hopeless:
        enough = f"--budget {enough_s(request.budget_s):.0f}s"
        say(f"{fits} of the {total} calls of the networks are left to fits; with {enough} more of them are timed")


def _check_none(rule: str, missing: Mapping[str, Iterable[Kernel]], request: Request, say: Say) -> None:
    """Refuse what is missing in a precision that is needed; say what is in others."""
    budget = f"--budget {enough_s(request.budget_s):.0f}s"
    gaps = {name: grouped(kernels) for name, kernels in missing.items()}
    refusals = [
        f"{gap}{'' if name == 'fp32' else f' in {name}'}" for name, gap in gaps.items() if name in request.needed
    ]
    if refusals:
        kept = f"what was measured is kept, and the same command with {budget} goes on from there"
        raise CoverageError(f"{rule}, got too few timings of {'; '.join(refusals)}; {kept}")
    for name, gap in gaps.items():
        say(f"{name} has too few timings of {gap} for predictions; {budget} takes more")


def check_complete(
    calibration: Calibration,
    kernels: Sequence[Kernel],
    request: Request,
    say: Say,
    precisions: Sequence[str] = ("fp32",),
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
