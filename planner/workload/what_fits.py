"""Which single changes make a split plan fit that does not.

Changes are tried in the order in which they usually cost more time: those that only move or drop what can be made again
cheaply, then smaller passes, then more messages, then the host's memory, then more nodes. All keep the mini-batch: a
smaller data-parallel degree takes as many more micro-batches.

What a split network needs at least: inputs of layers come to weights, gradients and optimizer, which all may share.
With 1f1b the first stage keeps those of L/p layers of p micro-batches, as many with any number of stages, so that
tensor and context degrees alone lower them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, BoolArray, IntArray, divisors
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import OPTIMIZERS, Configurations
from planner.domain.framework import GENERIC, Framework
from planner.domain.network import Network
from planner.domain.split import MEMORY_KINDS, OFFLOADS, RECOMPUTES
from planner.errors import ParameterError
from planner.workload.fusion import with_attention
from planner.workload.lawful import accumulates, is_lawful, most_stages
from planner.workload.memory import Memory
from planner.workload.rank_sizes import SUMS
from planner.workload.shards import attended_positions, divided_by_tensors, expert_number

TERMS = tuple(name for name in MEMORY_KINDS if name != "host")
"""Terms of memory on a device, as :class:`planner.domain.split.SplitMemoryBytes` names them."""
_SELECTIVE, _FULL = RECOMPUTES.index("selective"), RECOMPUTES.index("full")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a plan.

    Attributes
    ----------
    name : one of CHANGES
    value : what the degree, sub-batch, number of layers or of nodes becomes; 1 where it is only switched on
    plan : after it
    saved_bytes : of the stage that needs most
    """

    name: str
    value: int
    plan: Configurations
    saved_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a plan does not fit.

    Attributes
    ----------
    stage : that needs most, from 0
    largest : its three largest terms
    missing_bytes : how much more it needs than there is; 0 or less: it fits
    changes : each single change that can be made, in their order
    """

    stage: int
    largest: tuple[tuple[str, float], ...]
    missing_bytes: float
    changes: tuple[Change, ...]


class _Case(NamedTuple):
    ledger: Memory
    plan: Configurations
    capacity_bytes: float
    framework: Framework
    most_nodes: int
    before: Configurations

    def bytes_of(self) -> float:
        return float(self.ledger.fullest(self.plan).total.item())

    @property
    def positions(self) -> int:
        """What divides the positions of all its layers of attention."""
        return gcd(*attended_positions(self.ledger.network))

    @property
    def shardings(self) -> tuple[int, ...]:
        alone = self.get("pipeline_parallel") == 1
        return self.framework.shardings if alone else self.framework.shardings_in_pipeline

    @property
    def starts(self) -> bool:
        """Whether the framework starts the plan, or would not start the one that is changed either."""
        rules = self.ledger.network, self.framework
        return bool(accumulates(self.framework, self.plan)) and bool(
            is_lawful(*rules, self.plan) or not is_lawful(*rules, self.before)
        )

    def get(self, name: str) -> int:
        return int(getattr(self.plan, name).item())

    def but(self, **values: int) -> _Case:
        return self._replace(plan=self.plan.but(**values))


def what_fits(
    ledger: Memory,
    plan: Configurations,
    capacity_bytes: float,
    *,
    framework: Framework = GENERIC,
    most_nodes: int = LARGEST_COUNT,
) -> Shortage:
    """Return what one plan lacks, and the single changes that help; ParameterError: there are several plans.

    ``capacity_bytes``: of a device; ``framework``: whose ways of splitting are tried; ``most_nodes``: of the cluster.
    """
    if int(np.prod(plan.shape)) != 1:
        raise ParameterError("number of plans", "1, as each has changes of its own", int(np.prod(plan.shape)))
    case = _Case(ledger, plan, capacity_bytes, framework, most_nodes, plan)
    memory = ledger.fullest(plan)
    terms = sorted(((name, float(getattr(memory, name).item())) for name in TERMS), key=lambda term: -term[1])
    total_bytes = case.bytes_of()
    changes = [_change(name, tries, case, total_bytes) for name, tries in _TRIES.items()]
    return Shortage(
        int(memory.stage.item()), tuple(terms[:3]), total_bytes - capacity_bytes, tuple(one for one in changes if one)
    )


def _change(
    name: str, tries: Callable[[_Case], Iterator[tuple[int, _Case]]], case: _Case, before: float
) -> Change | None:
    """Return the first try that fits, else the one that needs least; None: there is none that the schedule runs."""
    best: Change | None = None
    for value, after in ((value, after) for value, after in tries(case) if after.starts):
        total = after.bytes_of()
        change = Change(name, value, after.plan, before - total, total <= case.capacity_bytes)
        if change.fits:
            return change
        best = change if best is None or change.saved_bytes > best.saved_bytes else best
    return best


def _sequence_parallel(case: _Case) -> Iterator[tuple[int, _Case]]:
    if case.get("tensor_parallel") > 1 and not case.get("sequence_parallel") and _shares_positions(case):
        yield 1, case.but(sequence_parallel=1)


def _fused_attention(case: _Case) -> Iterator[tuple[int, _Case]]:
    network = with_attention(case.ledger.network, ("attention",))
    if network is not case.ledger.network:
        yield 1, case._replace(ledger=Memory(network, case.ledger.rules))


def _recompute(case: _Case, *, code: int) -> Iterator[tuple[int, _Case]]:
    if case.get("recompute") < code and (code == _FULL or case.ledger.whole.sums[SUMS.index("freed")].any()):
        yield 1, case.but(recompute=code)


def _sub_batch(case: _Case) -> Iterator[tuple[int, _Case]]:
    """Yield the largest smaller sub-batch that fits and divides what passes between updates, else 1."""
    samples = case.get("sub_batch") * case.get("accumulation_steps")
    if case.get("sub_batch") > 1:
        most = int(case.ledger.largest_sub_batches(case.plan, case.capacity_bytes).item())
        for smaller in range(min(most, case.get("sub_batch") - 1), 0, -1):
            if samples % smaller == 0:
                yield smaller, case.but(sub_batch=smaller, accumulation_steps=samples // smaller)
        yield 1, case.but(sub_batch=1, accumulation_steps=samples)


def _sharding(case: _Case, *, level: int) -> Iterator[tuple[int, _Case]]:
    if case.get("sharding") < level in case.shardings and case.get("weight_copies") > 1:
        yield level, case.but(sharding=level)


def _tensor(case: _Case, *, in_node: bool) -> Iterator[tuple[int, _Case]]:
    node = case.get("gpus_per_node")
    for degree in tensor_degrees(case.ledger.network):
        if (degree <= node) == in_node:
            yield from _degree(case, "tensor_parallel", degree)


def _pipeline(case: _Case) -> Iterator[tuple[int, _Case]]:
    layers = most_stages(case.ledger.network)
    for degree in range(2, layers + 1):
        if case.get("recompute_every") <= -(-layers // degree):
            yield from _degree(case, "pipeline_parallel", degree)


def _context(case: _Case) -> Iterator[tuple[int, _Case]]:
    for degree in context_degrees(case.ledger.network):
        yield from _degree(case, "context_parallel", degree)


def _degree(case: _Case, name: str, degree: int) -> Iterator[tuple[int, _Case]]:
    """Yield the case with a larger degree in place of replicas, if they divide; as many samples pass."""
    had, replicas = case.get(name), case.get("data_parallel")
    if degree <= had or replicas * had % degree or name.removesuffix("_parallel") not in case.framework.can:
        return
    replicas_after = replicas * had // degree
    steps = case.get("accumulation_steps") * replicas
    after = case.but(**{name: degree, "data_parallel": replicas_after, "accumulation_steps": steps // replicas_after})
    shares = not after.get("sequence_parallel") or _shares_positions(after)
    if steps % replicas_after == 0 and after.get("weight_copies") % after.get("expert_parallel") == 0 and shares:
        yield degree, after


def _shares_positions(case: _Case) -> bool:
    """Tell whether tensor ranks can have equally many of a context rank's positions."""
    return case.positions % (case.get("context_parallel") * case.get("tensor_parallel")) == 0


def _fused_loss(case: _Case) -> Iterator[tuple[int, _Case]]:
    if case.ledger.rules.loss != "fused":
        yield 1, case._replace(ledger=case.ledger.with_rules(loss="fused"))


def _narrow_optimizer(case: _Case) -> Iterator[tuple[int, _Case]]:
    """Yield Adam with moments of one byte in place of fp32 ones."""
    if (each := case.ledger.rules.parameter).state == OPTIMIZERS["adam"]:
        narrow = replace(each, state=OPTIMIZERS["adam-8bit"])
        yield 1, case._replace(ledger=case.ledger.with_rules(parameter=narrow))


def _offload(case: _Case, *, code: int) -> Iterator[tuple[int, _Case]]:
    if case.get("offload") == 0:
        yield 1, case.but(offload=code)


def _more_nodes(case: _Case) -> Iterator[tuple[int, _Case]]:
    """Yield more replicas, doubling nodes; they share what the plan shards, at least what the optimizer updates."""
    gpus, node = int(case.plan.gpus.item()), case.get("gpus_per_node")
    replicas, factor = case.get("data_parallel"), 2
    sharding = next((one for one in case.shardings if one >= max(1, case.get("sharding"))), None)
    if sharding is None:
        return
    while (nodes := -(-gpus * factor // node)) <= case.most_nodes and replicas * factor <= LARGEST_COUNT:
        yield nodes, case.but(data_parallel=replicas * factor, sharding=sharding)
        factor *= 2


_TRIES: dict[str, Callable[[_Case], Iterator[tuple[int, _Case]]]] = {
    "sequence parallelism": _sequence_parallel,
    "fused attention": _fused_attention,
    "selective recompute": partial(_recompute, code=_SELECTIVE),
    "smaller sub-batch": _sub_batch,
    "sharding 1": partial(_sharding, level=1),
    "full recompute": partial(_recompute, code=_FULL),
    "tensor degree in a node": partial(_tensor, in_node=True),
    "sharding 2": partial(_sharding, level=2),
    "sharding 3": partial(_sharding, level=3),
    "pipeline degree": _pipeline,
    "context degree": _context,
    "fused loss": _fused_loss,
    "8-bit optimizer": _narrow_optimizer,
    "optimizer on the host": partial(_offload, code=OFFLOADS.index("optimizer")),
    "activations on the host": partial(_offload, code=OFFLOADS.index("activations")),
    "more nodes": _more_nodes,
    "tensor degree beyond a node": partial(_tensor, in_node=False),
}
CHANGES = tuple(_TRIES)
"""Names of changes, in the order in which they are tried."""


_MOST_CONTEXT = 64


def lowest_plans(network: Network, gpus_per_node: int, *, tensor_most: int | None = None) -> Configurations:
    """Return plans of every lawful product of degrees with the least memory of each, on the fewest GPUs.

    One sample a pass, whole layers made again, 1f1b with as many micro-batches as stages; sharding 3 where there is one
    stage, else 1. Stages have equally many layers.
    """
    t = [d for d in tensor_degrees(network) if d <= (tensor_most or d)]
    c = [d for d in context_degrees(network) if d <= _MOST_CONTEXT]
    p, x = divisors(most_stages(network)), divisors(max(expert_number(network), 1))
    tensor, context, pipeline, expert = (np.ravel(axis) for axis in np.meshgrid(t, c, p, x, indexing="ij"))
    return Configurations.having(
        accumulation_steps=pipeline,
        data_parallel=expert // np.gcd(expert, context),
        tensor_parallel=tensor,
        context_parallel=context,
        expert_parallel=expert,
        pipeline_parallel=pipeline,
        sequence_parallel=(tensor > 1).astype(np.int64),
        recompute=RECOMPUTES.index("full"),
        sharding=np.where(pipeline == 1, 3, 1),
        schedule=SCHEDULES.index("1f1b"),
        gpus_per_node=gpus_per_node,
    )


def least_gpus(ledger: Memory, plans: Configurations, capacity_bytes: float, node: int) -> int | None:
    """Return the fewest GPUs, whole nodes of so many, on which one of :func:`lowest_plans` fits; None: on no number.

    The data-parallel degree of each is bisected: more replicas never take more.
    """
    unit = plans.data_parallel

    def fits(times: IntArray) -> BoolArray:
        return np.asarray(ledger.fullest(plans.but(data_parallel=unit * times)).total <= capacity_bytes)

    unfit, fit = np.zeros_like(unit), np.maximum(LARGEST_COUNT // plans.gpus, 1)
    can = fits(fit)
    while (between := fit - unfit > 1).any():
        middle = np.where(between, (unfit + fit) // 2, fit)
        enough = fits(middle)
        fit, unfit = np.where(enough, middle, fit), np.where(between & ~enough, middle, unfit)
    gpus = plans.but(data_parallel=unit * fit).gpus[can]
    if not gpus.size:
        return None
    return min(int(one) if one <= node else -(-int(one) // node) * node for one in gpus)


def tensor_degrees(network: Network) -> list[int]:
    """Return the tensor-parallel degrees that divide every layer of a network with blocks, rising."""
    divided = divided_by_tensors(network)
    heads = gcd(*(one.whole for one in divided if not one.is_shared))
    return [one for one in divisors(heads) if all(each.holds(np.array(one)) for each in divided)]


def context_degrees(network: Network) -> list[int]:
    """Return the context-parallel degrees that deal out the positions of a network with blocks, rising."""
    positions = gcd(*attended_positions(network)) if len(network.input_shape) <= 2 else 1
    return divisors(positions // 2) if positions % 2 == 0 else [1]
