"""Times of collectives and of messages, by alpha and beta or as measured.

Measured at given numbers of nodes and ranks, no formula joins the cases. Settings: ``cases``, flat (nodes, ranks per
node) pairs; ``form``: ``sqrt`` for 1, sqrt V, V, or ``segments`` for piecewise alpha-beta; ``breaks_NxR`` [byte], the
ends of all but the last segment of a case.

A segmented case has the features 1; for each segment the part of V that lies in it; for each break b the step V > b.
The feature ``unmeasured`` is 1 for a case that was not measured; its coefficient is 0: it is there so that such a
prediction counts as extrapolated. Between measured numbers of ranks time is a line in log2 p or a power of p; beyond
them it is that of the nearest case, its bytes times (p-1)/p and its start-up times log2 p over the same of that case.

The segments span all piecewise lines, and with coefficients >= 0 a longer message never takes less time.

In the alpha-beta model, by algorithm, with the time over the algorithms an entry enables:

V: buffer on each rank [byte], for all-gather and reduce-scatter the whole that is gathered or scattered; N: nodes; r:
ranks of a group on each node; p = N·r; s: streams that share one NIC when every rank of a node sends. Coefficients:
start-up alpha [s/message] and transfer time beta [s/byte] inside a node, then both between nodes. The arithmetic of the
reduction is absorbed by beta.

Each algorithm returns features of shape (g, k, 4) for g groups and k buffers, or k of each group, shape (g, k):
messages and bytes inside, messages and bytes between. Ranks of a node are neighbours. If its ranks are one group, r/s
NICs are at work, and algorithms that send a node's data once between nodes spread it over them, hence the factor s/r;
if they are several, each has its part of the NICs. One rank sends nothing.

Formulas: Thakur, Rabenseifner, Gropp (2005), IJHPCA 19(1); trees and latencies of rings across nodes as in NCCL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.costs.features import (
    BYTE,
    INTER_NODE,
    INTRA_NODE,
    MESSAGE,
    NUMBER,
    Column,
    FeatureMap,
    Settings,
    Work,
    column,
    number,
    stacked,
    text,
    vector,
)
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Entry
from planner.domain.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PARAMETER_SERVER,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    Groups,
)
from planner.errors import CoverageError, ParameterError, Refusal, UnknownNameError, named
from planner.numbers import constants

CASES, UNMEASURED = "collective.cases", "unmeasured"
RANKS_POWER = "ranks_power"
"""Setting: the power of p in which time between measured numbers of ranks is a line; 0: their logarithm."""
BEYOND = "algorithms"
"""Setting of an entry whose other coefficients serve what was not measured at all: inside nodes, or across them."""


def case_list(settings: Settings) -> list[tuple[int, int]]:
    """Return the measured (nodes, ranks per node)."""
    flat = vector(settings, "cases", of=2).astype(int).tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


def breaks_key(case: tuple[int, int]) -> str:
    """Return the setting that holds the breaks of a case."""
    return f"breaks_{case[0]}x{case[1]}"


def _columns(case: tuple[int, int], settings: Settings) -> list[Column]:
    """Return the columns of one case; a step scales as bytes do: it is where a library moves them in another way."""
    if text(settings, "form", "sqrt") == "sqrt":
        parts = ["sqrt_bytes", "bytes"]
    else:
        breaks = vector(settings, breaks_key(case)).tolist()
        parts = [*(f"bytes_{i}" for i in range(len(breaks) + 1)), *(f"step_{i}" for i in range(len(breaks)))]
    of_case, link = f"{case[0]}x{case[1]}", INTRA_NODE if case[0] == 1 else INTER_NODE
    bytes_ = (Column(f"{of_case}_{part}", BYTE, link) for part in parts)
    return [Column(f"{of_case}_calls", MESSAGE, link), *bytes_]


def case_features(bytes_: FloatArray, case: tuple[int, int], settings: Settings) -> FloatArray:
    """Return the features of one case, shape (..., q), of messages of shape (...)."""
    if text(settings, "form", "sqrt") == "sqrt":
        return np.stack([np.ones_like(bytes_), np.sqrt(bytes_), bytes_], axis=-1)
    breaks = vector(settings, breaks_key(case))
    lower, upper = np.concatenate([[0.0], breaks]), np.concatenate([breaks, [np.inf]])
    pieces = np.clip(bytes_[..., None] - lower, 0.0, upper - lower)
    return np.concatenate([np.ones_like(bytes_)[..., None], pieces, bytes_[..., None] > breaks], axis=-1)


def covers(settings: Settings, nodes: FloatArray) -> BoolArray:
    """Tell whether a case of the same sort was measured, inside one node or across nodes, shape of ``nodes``."""
    inside, across = (any((case[0] > 1) == sort for case in case_list(settings)) for sort in (False, True))
    return np.where(np.asarray(nodes) > 1, across, inside)


def _weights(nodes: float, ranks_per_node: float, settings: Settings) -> dict[tuple[int, int], FloatArray | float]:
    """Return measured cases, each with what its features are multiplied by, for a group of p = nodes x ranks per node.

    A line in log2 p, or in a power of p (setting ``ranks_power``), between the two cases around p, inside a node or
    with as many ranks a node; else the nearest case in log2 p, scaled.

    CoverageError: no case of that sort was measured.
    """
    ranks, cases = nodes * ranks_per_node, case_list(settings)
    same = [case for case in cases if (case[0] > 1) == (nodes > 1) and case[0] * case[1] > 1]
    if not same:
        where = "across nodes" if nodes > 1 else "inside one node"
        rule, got = f"collectives must be measured {where}", f"only (nodes, ranks per node) {cases}"
        remedy = "; describe the links of the cluster, or leave out the calibration that holds them"
        raise CoverageError(Refusal("collective_unmeasured", rule, "collectives", got, remedy))
    line = sorted(
        (case for case in same if nodes == 1 or case[1] == ranks_per_node), key=lambda case: case[0] * case[1]
    )
    power = number(settings, RANKS_POWER, 0.0)
    for low, high in itertools.pairwise(line):
        every = np.array([low[0] * low[1], ranks, high[0] * high[1]], dtype=np.float64)
        start, at, end = every**power if power else np.log2(every)
        if start <= at <= end:
            share = float((at - start) / (end - start))
            return {case: weight for case, weight in ((low, 1 - share), (high, share)) if weight}
    near = min(same, key=lambda case: (abs(np.log2(case[0] * case[1] / ranks)), abs(case[1] - ranks_per_node), case))
    of_near = near[0] * near[1]
    scale = np.full(len(_columns(near, settings)), (1 - 1 / ranks) / (1 - 1 / of_near))
    scale[0] = np.log2(ranks) / np.log2(of_near)
    return {near: scale}


def _measured(work: Work, settings: Settings) -> FloatArray:
    """Return the features of messages between groups, those of cases around them weighted; see the module."""
    v, n, r = np.broadcast_arrays(*(column(work, name) for name in ("bytes", "nodes", "ranks_per_node")))
    cases = case_list(settings)
    starts = dict(zip(cases, np.cumsum([0, *(len(_columns(case, settings)) for case in cases)]).tolist(), strict=False))
    size = len(case_columns(settings))
    result = np.zeros((*v.shape, size + (len(COLUMNS) if BEYOND in settings else 0)))
    known = covers(settings, n) | (BEYOND not in settings)
    for nodes, ranks in sorted(set(zip(n.ravel().tolist(), r.ravel().tolist(), strict=True))):
        rows = (n == nodes) & (r == ranks)
        result[rows, size - 1] = nodes * ranks > 1 and (nodes, ranks) not in cases
        if nodes * ranks > 1 and known[rows].all():
            for case, weight in _weights(nodes, ranks, settings).items():
                block = case_features(v[rows], case, settings) * weight
                result[rows, starts[case] : starts[case] + block.shape[-1]] = block
    return result


def case_columns(settings: Settings) -> tuple[Column, ...]:
    """Return the columns of all measured cases, then that of what was not measured."""
    return *(one for case in case_list(settings) for one in _columns(case, settings)), Column(UNMEASURED, NUMBER)


BYTES_INSIDE = Column("bytes_inside", BYTE, INTRA_NODE)
BYTES_BETWEEN = Column("bytes_between", BYTE, INTER_NODE)
MESSAGES_INSIDE = Column("messages_inside", MESSAGE, INTRA_NODE)
COLUMNS = (MESSAGES_INSIDE, BYTES_INSIDE, Column("messages_between", MESSAGE, INTER_NODE), BYTES_BETWEEN)
IN_NETWORK = constants("collectives.in_network")
"""Share of a ring's rate at which bytes go through switches that add them, by link (docs/numbers.md)."""


def _group_columns(groups: Groups) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return N, r and s, each of shape (g, 1)."""
    columns = (groups.nodes, groups.ranks_per_node, groups.streams_per_nic)
    n, r, s = (np.asarray(values, dtype=np.float64)[:, None] for values in columns)
    if min(n.min(initial=1), r.min(initial=1), s.min(initial=1)) < 1:
        raise ParameterError("groups", "of at least one node, rank and stream", groups)
    return n, r, s


def _buffers(buffer_bytes: FloatArray) -> FloatArray:
    sizes = np.asarray(buffer_bytes, dtype=np.float64)
    if sizes.ndim not in {1, 2} or not np.all(np.isfinite(sizes) & (sizes >= 0)):
        raise ParameterError("buffer_bytes", "one vector or one a group of finite sizes >= 0 byte", buffer_bytes)
    return np.atleast_2d(sizes)


def ring_all_reduce(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of a ring: 2(p-1) messages, 2(p-1)/p·V bytes (Patarasuk & Yuan 2009).

    Across nodes 2(N-1) of the messages go between nodes, and all bytes pass every link of the ring.
    """
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    p = n * r
    total = 2 * (p - 1) / p * v
    return stacked([2 * (p - n), total * (r > 1), 2 * (n - 1), total * (n > 1) * (s / r)])


def _rounds(n: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return rounds of pairwise exchange inside and between nodes, and whether ranks are left over."""
    p = n * r  # partners at distance 1, 2, 4, ...: the first log2 r stay inside if r is a power of two
    rounds = np.floor(np.log2(p))
    is_power = np.exp2(np.round(np.log2(r))) == r
    inside = np.where(n == 1, rounds, np.where(is_power, np.round(np.log2(r)), 0.0))
    return inside, rounds - inside, (np.exp2(rounds) != p).astype(np.float64)


def recursive_doubling(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of recursive doubling: log2 p messages of V, and 2 more where p is not a power of two."""
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    inside, between, left_over = _rounds(n, r)
    inside = inside + 2 * left_over * (n == 1)
    between = between + 2 * left_over * (n > 1)
    return stacked([inside, inside * v, between, between * v * s])


def rabenseifner(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of recursive halving and doubling: 2·log2 p' messages, 2(p'-1)/p'·V bytes, p' = 2^floor(log2 p).

    Halves go to the nearest partner first. Where p' < p two messages of V more, an upper bound.
    """
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    inside, between, left_over = _rounds(n, r)
    extra_inside, extra_between = 2 * left_over * (n == 1), 2 * left_over * (n > 1)
    rest = np.exp2(-inside)
    bytes_inside = (2 * (1 - rest) + extra_inside) * v
    bytes_between = (2 * (rest - np.exp2(-inside - between)) + extra_between) * v * s
    return stacked([2 * inside + extra_inside, bytes_inside, 2 * between + extra_between, bytes_between])


def double_binary_tree(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of two pipelined trees over nodes, chains inside: 2(r-1) and 2·floor(log2 N) messages, 2V."""
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    return stacked([2 * (r - 1), 2 * v * (r > 1), 2 * np.floor(np.log2(n)), 2 * v * (n > 1) * (s / r)])


def hierarchical(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of reduce-scatter inside, r ring all-reduces of V/r between nodes at once, all-gather inside."""
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    return stacked([2 * (r - 1), 2 * (r - 1) / r * v, 2 * (n - 1), 2 * (n - 1) / n * (v / r) * s])


def _in_switches(links: str) -> Callable[[FloatArray, Groups], FloatArray]:
    """Return features of an all-reduce that switches of some links add up: V over these, over others 2(p-1)/p·V."""

    # Each rank of a node has V/r of it between nodes. No start-up is saved: NCCL sums small buffers around rings.
    def features(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
        v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
        around = 2 * (n * r - 1) / (n * r) * v
        inside, between = (v / IN_NETWORK[one] if one in links else around for one in (INTRA_NODE, INTER_NODE))
        rounds = np.floor(np.log2(n)) if INTER_NODE in links else n - 1
        return stacked([2 * (r - 1), inside * (r > 1), 2 * rounds, between * (n > 1) * (s / r)])

    return features


def ring_gather(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of all-gather, or of reduce-scatter, around a ring: half of an all-reduce, which is both."""
    return ring_all_reduce(buffer_bytes, groups) / 2


def pairwise(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of all-to-all in p-1 exchanges of V/p: r-1 stay on the node, the others share its NICs."""
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    p = n * r
    return stacked([r - 1, (r - 1) / p * v, p - r, (p - r) / p * v * s])


def direct(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of one message of V from one rank of a pair to the other."""
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    across, inside = np.where(n > 1, 1.0, 0.0), np.where((n == 1) & (r > 1), 1.0, 0.0)
    return stacked([inside, inside * v, across, across * v * s])


def parameter_server(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return features of pushing gradients to servers and pulling weights: 2 messages, 2V bytes (MODEL 8.4).

    The ranks of a node sum theirs first, each a part, and share what is pulled: 2(r-1)/r·V. Every node has a server
    with its part of the weights, so that 1/N of the node's sum stays; push and pull do not overlap.
    """
    v, (n, r, s) = _buffers(buffer_bytes), _group_columns(groups)
    inside, across = np.where(r > 1, 2.0, 0.0), np.where(n > 1, 2.0, 0.0)
    return stacked([inside, inside * (r - 1) / r * v, across, across * (n - 1) / n * v * (s / r)])


@dataclass(frozen=True, slots=True)
class Collective:
    """An algorithm of a collective operation; a row of :data:`COLLECTIVES` is all that declares one.

    Attributes
    ----------
    name : in the setting ``algorithms`` of calibrations
    operation : kind of the entries whose time it can be, such as ``all_reduce``
    features : buffer_bytes (k,), g groups -> ndarray of shape (g, k, 4)
        In the order of COLUMNS.
    words : what people call it
    between : between what a library may choose it, where links are specified: GPUS, CPUS, HOSTS
    is_pipelined : bool
        Links inside and between nodes carry data at the same time: the slower of the two sets the pace. Which one it is
        follows from the setting ``beta_ratio``, beta between nodes over beta inside; without it both count.
    """

    name: str
    operation: str
    features: Callable[[FloatArray, Groups], FloatArray]
    words: str
    between: frozenset[str]
    is_pipelined: bool = False


ALPHA_BETA = "collective.alpha_beta"
IN_SWITCHES = "switches:"
GPUS, CPUS, HOSTS = "gpu", "cpu", "host"
"""Ranks: devices of either kind, by :attr:`planner.domain.cluster.Accelerator.kind`, or one host process a node."""
COLLECTIVES: tuple[Collective, ...] = (
    Collective("ring", ALL_REDUCE, ring_all_reduce, "ring", frozenset({GPUS, CPUS, HOSTS}), is_pipelined=True),
    Collective("recursive_doubling", ALL_REDUCE, recursive_doubling, "recursive doubling", frozenset({CPUS, HOSTS})),
    Collective("rabenseifner", ALL_REDUCE, rabenseifner, "Rabenseifner", frozenset({CPUS, HOSTS})),
    Collective(
        "double_binary_tree", ALL_REDUCE, double_binary_tree, "double binary tree", frozenset({GPUS}), is_pipelined=True
    ),
    Collective("hierarchical", ALL_REDUCE, hierarchical, "hierarchical", frozenset({CPUS})),
    *(
        Collective(
            IN_SWITCHES + links, ALL_REDUCE, _in_switches(links), "sums in switches", frozenset(), is_pipelined=True
        )
        for links in (INTRA_NODE, INTER_NODE, f"{INTRA_NODE}+{INTER_NODE}")
    ),
    Collective("ring", ALL_GATHER, ring_gather, "ring", frozenset({GPUS, CPUS}), is_pipelined=True),
    Collective("ring", REDUCE_SCATTER, ring_gather, "ring", frozenset({GPUS, CPUS}), is_pipelined=True),
    Collective("pairwise", ALL_TO_ALL, pairwise, "pairwise", frozenset({GPUS, CPUS}), is_pipelined=True),
    Collective("direct", SEND_RECEIVE, direct, "direct", frozenset({GPUS, CPUS})),
    Collective("servers", PARAMETER_SERVER, parameter_server, "parameter servers", frozenset({GPUS, CPUS})),
)
"""GPUs: what NCCL chooses from; CPUs and hosts: what message passing libraries do (Thakur, Rabenseifner, Gropp)."""


def algorithms_between(ranks: str, operation: str = ALL_REDUCE, adding: Sequence[str] = ()) -> tuple[Collective, ...]:
    """Return the algorithms of an operation that libraries choose from, between GPUS, CPUS or HOSTS.

    ``adding``: links whose switches add up an all-reduce, in the order INTRA_NODE, INTER_NODE.
    """
    chosen = (one for one in COLLECTIVES if one.operation == operation and ranks in one.between)
    return *chosen, *([algorithm_named(IN_SWITCHES + "+".join(adding))] if adding else ())


def algorithm_named(name: str, operation: str = ALL_REDUCE) -> Collective:
    """Return an algorithm of an operation, or raise UnknownNameError."""
    by_name = {one.name: one for one in COLLECTIVES if one.operation == operation}
    return named(f"{operation.replace('_', '-')} algorithm", name, by_name)


def _counted(one: Collective, settings: Settings, groups: Groups, features: FloatArray) -> FloatArray:
    """Return features of an algorithm, shape (g, k, 4), without the bytes that a slower link hides."""
    pair, ratio = number(settings, "pair_ratio", 1.0), number(settings, "beta_ratio", 0)
    holds_up = one.operation != SEND_RECEIVE and pair != 1.0
    if holds_up or (one.is_pipelined and ratio > 0):
        features = features.copy()
    if holds_up:  # a ring of two nodes sends both ways between them, which hold each other up
        features[..., COLUMNS.index(BYTES_BETWEEN)] *= np.where(groups.nodes == 2, pair, 1.0).reshape(-1, 1)
    if one.is_pipelined and ratio > 0:
        inside, between = COLUMNS.index(BYTES_INSIDE), COLUMNS.index(BYTES_BETWEEN)
        between_is_slower = features[..., between] * ratio >= features[..., inside]
        features[..., inside] *= ~between_is_slower
        features[..., between] *= between_is_slower
    return features


def _check_links(settings: Settings, groups: Groups) -> None:
    for link in text(settings, "unknown_links", "").split():
        if np.any({"intra_node": groups.ranks_per_node, "inter_node": groups.nodes}[link] > 1):
            name, remedy = f"link {link}", f"; describe links.{link} in the cluster"
            got = "a plan that sends over it"
            raise CoverageError(Refusal("link_missing", f"{name} must be known", name, got, remedy))


def all_reduce_s(entry: Entry, buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """Return times [s] of all-reduce, shape (g, k); see :func:`collective_s`."""
    return collective_s(entry, ALL_REDUCE, buffer_bytes, groups)


def collective_s(
    entry: Entry, operation: str, buffer_bytes: FloatArray, groups: Groups, counts: dict[str, FloatArray] | None = None
) -> FloatArray:
    """Return times [s] of an operation, shape (g, k): the least over the algorithms that the entry enables.

    The links of an entry of all-reduce serve every operation, by each algorithm that there is of it. Of all-reduce
    that was measured, or fitted without algorithms, all-gather and reduce-scatter take half, as an all-reduce around a
    ring is one after the other; all-to-all takes half, and across nodes as many times more as more bytes pass the NICs
    of a node, r(p-r)/(p-1); a message takes as long as an all-reduce of its two ranks, an upper figure by one start-up.
    Pushing to parameter servers and pulling takes as long as an all-reduce, whose bytes it moves.

    Parameters
    ----------
    entry : of the operation or of all-reduce. Term ``collective.alpha_beta`` (settings ``algorithms``: names joined by
        spaces, ``beta_ratio``, ``pair_ratio``), ``collective.cases`` or ``collective.logarithmic``
    operation : ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECEIVE or PARAMETER_SERVER
    buffer_bytes : ndarray of shape (k,), or (g, k): of each group its own
    groups : Groups, g of them; one rank takes 0 s
    counts : dict of algorithm -> its features, optional
        Of the same buffers and groups; what is missing is put in, so that other entries need not count again.

    CoverageError: the groups need a link, or a kind of placement, that the entry does not know.
    UnknownNameError: the operation, the term or an algorithm is not known.
    """
    alone = (groups.ranks == 1)[:, None]
    if entry.term == ALPHA_BETA:
        _check_links(entry.settings, groups)
        theta = np.array([entry.coefficients[one.name] for one in COLUMNS])
        algorithms = _enabled(entry, operation)
        counts = {} if counts is None else counts
        counts |= {one.name: one.features(buffer_bytes, groups) for one in algorithms if one.name not in counts}
        options = [_counted(one, entry.settings, groups, counts[one.name]) @ theta for one in algorithms]
        times = np.stack(options).min(axis=0)
    else:
        term = named("collective term", entry.term, {term.name: term for term in COLLECTIVE_TERMS})
        theta = np.array([entry.coefficients[name] for name in term.names(entry.settings)])
        n, r, s = _group_columns(groups)
        work = {"bytes": _buffers(buffer_bytes), "nodes": n, "ranks_per_node": r, "streams_per_nic": s}
        times = term.features(work, entry.settings) @ theta
        if operation != entry.kind:
            times = times * _share_of_all_reduce(operation, groups)
        if term.name == CASES and BEYOND in entry.settings:
            sheet = replace(entry, term=ALPHA_BETA, kind=ALL_REDUCE)
            times = np.where(covers(entry.settings, n), times, collective_s(sheet, operation, buffer_bytes, groups))
    return np.where(alone, 0.0, times)


def _enabled(entry: Entry, operation: str) -> list[Collective]:
    """Return the algorithms that an entry names, if it is of the operation, else all that there are."""
    if operation == entry.kind:
        return [algorithm_named(name, operation) for name in text(entry.settings, "algorithms", "ring").split()]
    every = [one for one in COLLECTIVES if one.operation == operation]
    if not every:
        raise UnknownNameError("collective operation", operation, {one.operation for one in COLLECTIVES})
    return every


def _share_of_all_reduce(operation: str, groups: Groups) -> FloatArray:
    """Return the time of an operation over that of an all-reduce of as many bytes, shape (g, 1)."""
    n, r, _ = _group_columns(groups)
    shares = dict.fromkeys((ALL_REDUCE, SEND_RECEIVE, PARAMETER_SERVER), np.ones(n.shape))
    shares |= dict.fromkeys((ALL_GATHER, REDUCE_SCATTER), np.full(n.shape, 0.5))
    crowd = r * (n - 1) * r / np.maximum(n * r - 1, 1.0)
    shares[ALL_TO_ALL] = 0.5 * np.where(n > 1, crowd, 1.0)
    return named("collective operation", operation, shares)


def _alpha_beta(work: Work, settings: Settings) -> FloatArray:
    """Features of rows of (bytes, nodes, ranks_per_node), each of shape (k,), under the first enabled algorithm."""
    v, n, r = np.broadcast_arrays(*(column(work, name) for name in ("bytes", "nodes", "ranks_per_node")))
    streams = np.broadcast_to(column(work, "streams_per_nic") if "streams_per_nic" in work else 1.0, v.shape)
    first = algorithm_named(text(settings, "algorithms", "ring").split()[0])
    flat = np.empty((v.size, len(COLUMNS)))
    for nodes, ranks, sharers in set(
        zip(n.ravel().tolist(), r.ravel().tolist(), streams.ravel().tolist(), strict=True)
    ):
        rows = ((n == nodes) & (r == ranks) & (streams == sharers)).ravel()
        group = Groups(np.array([int(nodes)]), np.array([ranks]), np.array([sharers]))
        flat[rows] = _counted(first, settings, group, first.features(v.ravel()[rows], group))[0]
    return flat.reshape(*v.shape, len(COLUMNS))


COLLECTIVE_TERMS = (
    FeatureMap(
        ALPHA_BETA,
        lambda _settings: COLUMNS,
        _alpha_beta,
        doc="messages and bytes of an all-reduce algorithm, inside a node and between nodes",
    ),
    FeatureMap(
        "collective.logarithmic",
        lambda _settings: (Column("log2_ranks", MESSAGE, INTER_NODE), Column("byte_log2_ranks", BYTE, INTER_NODE)),
        lambda work, _settings: (
            stacked([1.0, column(work, "bytes")])
            * np.log2(column(work, "nodes") * column(work, "ranks_per_node"))[..., None]
        ),
        doc="(a + b·V)·log2 p: tree-like all-reduce of host buffers",
    ),
    FeatureMap(
        CASES,
        lambda settings: (*case_columns(settings), *(COLUMNS if BEYOND in settings else ())),
        _measured,
        doc="for each measured (nodes, ranks per node): 1, sqrt V, V, or piecewise alpha-beta",
        stated={UNMEASURED: 0.0},
    ),
)
