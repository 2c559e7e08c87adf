"""Ranks and the messages between them, timed: operations over sizes and groups, and how far a step hides them.

A launcher's variables say the rank of a process; PyTorch's own go before those of others. Ranks meet in a store that
rank 0 keeps, or the agent of ``torchrun``. Each says there what it runs on; rank 0 lets them begin, or says why not.

All ranks go through the points that rank 0 names, again and again in an order by chance while there is time. What
counts is the median of the visits that agree with the fastest two that do; where none do the machine was disturbed, and
the point is left out. A visit is the median of rounds, each the longest time of any rank from a common start, of as
many calls as take a while.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND_RECEIVE
from planner.errors import NOTHING, ParameterError
from planner.probes.precisions import import_torch
from planner.probes.run import Earlier, Measured, append

ARRIVAL_S = 60.0
"""Time that ranks have to come, and a message to arrive."""
LEAVING_S, TRY_S = 3.0, 2.0
"""Time in which ranks that are still there say so when one is gone; time of one try to reach rank 0."""
DEFAULT_PORT, PORTS = 29411, 1000
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ""),
}
"""Launcher -> variables with the rank of a process, their number, its number on its node, and that of the node."""
Tell = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the processes that a launcher has started.

    Attributes
    ----------
    rank, size, local : its number, that of all, and its number on its node
    node : what tells its node from others
    address, port : where ranks meet
    is_served : the launcher keeps the store; else rank 0 does
    """

    rank: int
    size: int
    local: int
    node: str
    address: str
    port: int
    is_served: bool = False


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return which rank this process is; None where no launcher has started it.

    ParameterError: the launcher does not say where ranks of several nodes meet, or says no numbers.
    """
    present = [one for one, names in LAUNCHERS.items() if all(name in environment for name in names[:2])]
    if not present:
        return None
    launcher, names = present[0], LAUNCHERS[present[0]]
    try:
        rank, size, local = (int(environment.get(name) or "0") for name in names[:3])
    except ValueError:
        got = ", ".join(f"{name}={environment.get(name)}" for name in names[:3])
        raise ParameterError(f"variables of {launcher}", "whole numbers", got) from None
    hosts = environment.get("SLURM_STEP_NODELIST", "") if launcher == "srun" else ""
    is_alone = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", "") == str(size)
    address = environment.get("MASTER_ADDR") or _first_host(hosts) or ("127.0.0.1" if is_alone or size == 1 else "")
    if not address:
        remedy = f"give {launcher} the host of rank 0, as mpirun -x MASTER_ADDR=HOST"
        raise ParameterError("MASTER_ADDR", "set where ranks may be on several nodes", NOTHING, remedy)
    job = re.sub(r"\D", "", environment.get("SLURM_JOB_ID", ""))
    port = int(environment.get("MASTER_PORT") or DEFAULT_PORT + int(job or 0) % PORTS)
    node = environment.get(names[3], "") if names[3] else ""
    is_served = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Rank(rank, size, local, node or socket.gethostname(), address, port, is_served)


def _first_host(nodes: str) -> str:
    """Return the first host of a list of Slurm.

    >>> _first_host("node[07-09,12],x1"), _first_host("a1,a2")
    ('node07', 'a1')
    """
    found = re.match(r"([^\[,]*)(?:\[([^\],-]+))?", nodes)
    return f"{found[1]}{found[2] or ''}" if found else ""


@dataclass(frozen=True, slots=True)
class Joined:
    """Ranks that have met.

    Attributes
    ----------
    own : this one
    nodes : tuple of tuples of int, ranks of each node, in the order of their first
    device : ``cpu`` or ``cuda:I``
    library : that sends, ``gloo`` or ``nccl``
    control : group of all ranks over sockets of the hosts, by which they agree what comes next
    """

    own: Rank
    nodes: tuple[tuple[int, ...], ...]
    device: str
    library: str
    store: Any
    control: Any

    @property
    def ranks_per_node(self) -> int:
        """Ranks that every node has."""
        return min(map(len, self.nodes))


def join(own: Rank, device: str, facts: Mapping[str, str], *, arrival_s: float = ARRIVAL_S, gone: Tell = str) -> Joined:
    """Return the ranks that have met, all that were to come and alike.

    ``facts``: what must be alike, by name; ``gone``: says which rank has ended already, empty: none that is known.

    ParameterError: a rank did not come in time, or runs on something else; every rank that came raises it.
    """
    torch = import_torch()
    dist = torch.distributed
    until_s = time.monotonic() + arrival_s
    store = _store(dist, own, until_s, arrival_s)
    store.set(f"planner/{own.rank}", json.dumps({"node": own.node, **facts}))
    if own.rank == 0:
        try:
            _check_ranks(store, own.size, until_s, gone)
        except ParameterError as error:
            store.set("planner/begin", str(error))
            _wait(lambda: store.check([f"planner/heard/{rank}" for rank in range(1, own.size)]), LEAVING_S)
            raise
        store.set("planner/begin", "")
    try:
        has_word = _wait(lambda: store.check(["planner/begin"]), max(until_s - time.monotonic(), 0.0) + arrival_s)
        refusal = store.get("planner/begin").decode() if has_word else f"no word of rank 0 in {2 * arrival_s:.0f} s"
        store.set(f"planner/heard/{own.rank}", "")
    except RuntimeError:  # PyTorch's own for a store whose keeper is gone
        refusal = "rank 0 gone"
    if refusal:
        raise ParameterError("ranks of --links", "complete and alike", refusal)
    nodes: dict[str, list[int]] = {}
    for rank in range(own.size):
        nodes.setdefault(json.loads(store.get(f"planner/{rank}"))["node"], []).append(rank)
    library = "gloo" if device == "cpu" else "nccl"
    if device != "cpu":
        torch.cuda.set_device(device)
    wait = timedelta(seconds=arrival_s)
    dist.init_process_group(
        library, store=dist.PrefixStore("planner-group", store), rank=own.rank, world_size=own.size, timeout=wait
    )
    control = dist.new_group(backend="gloo", timeout=wait)
    return Joined(own, tuple(map(tuple, nodes.values())), device, library, store, control)


def _store(dist: Any, own: Rank, until_s: float, arrival_s: float) -> Any:
    """Return the store where ranks meet, or raise ParameterError; tried again, so that signals are heard between."""
    while True:
        try:
            store = dist.TCPStore(
                own.address, own.port, own.size, own.rank == 0 and not own.is_served,
                timeout=timedelta(seconds=TRY_S), wait_for_workers=False,
            )  # fmt: skip
        except RuntimeError as error:
            if time.monotonic() > until_s or own.rank == 0:
                where, why = f"reached at {own.address}:{own.port}", str(error).splitlines()[0]
                got = f"nothing in {arrival_s:.0f} s ({why})"
                raise ParameterError("rank 0 of --links", where, got, "has it ended?") from None
        else:
            store.set_timeout(timedelta(seconds=arrival_s))
            return store


def _wait(is_so: Callable[[], bool], for_s: float) -> bool:
    """Return whether something is so within a time [s]."""
    until_s = time.monotonic() + for_s
    while not is_so():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


def _check_ranks(store: Any, size: int, until_s: float, gone: Tell) -> None:
    """Wait for all ranks; refuse late ones, and those with other software or devices than rank 0's; both are shown."""
    missing = list(range(size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"planner/{rank}"])]
        ended = gone() if missing else ""
        if ended or (missing and time.monotonic() > until_s):
            one = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
            got = f"nothing of {one}{f' ({ended})' if ended else ''}"
            raise ParameterError("ranks of --links", f"{size} that come in time", got, "nothing was written")
        time.sleep(0.02)
    every = [json.loads(store.get(f"planner/{rank}")) for rank in range(size)]
    for rank, facts in enumerate(every):
        for name, value in facts.items():
            if name != "node" and value != every[0].get(name):
                rule = f"as of rank 0, {every[0].get(name, NOTHING)!r} on {every[0]['node']}"
                remedy = "run the same on all nodes; nothing was written"
                raise ParameterError(f"{name} of rank {rank}", rule, f"{value!r} on {facts['node']}", remedy)


@contextlib.contextmanager
def losses_named(joined: Joined, gone: Tell = str) -> Iterator[None]:
    """Let an error about a message that did not arrive name the ranks that are gone; messages end with the context."""
    dist = import_torch().distributed
    try:
        yield
    except RuntimeError as error:  # PyTorch's own
        got = f"{_who_left(joined, gone)} ({str(error).splitlines()[0]})"
        raise ParameterError("ranks of --links", "there to the end", got, "what was measured is kept") from error
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _who_left(joined: Joined, gone: Tell) -> str:
    """Return which ranks are gone, in words: those that do not say in the store that they are left."""
    store, own = joined.store, joined.own
    missing = list(range(own.size))
    try:
        store.set(f"planner/left/{own.rank}", "here")
        _wait(lambda: store.check([f"planner/left/{rank}" for rank in range(own.size)]), LEAVING_S)
        missing = [rank for rank in missing if not store.check([f"planner/left/{rank}"])]
    except RuntimeError:  # as above
        missing = [0]
    return gone() or (f"rank {', '.join(map(str, missing))} gone" if missing else "every rank there")


BROADCAST = "broadcast"
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND_RECEIVE, ALL_TO_ALL, BROADCAST)
SIZES = {"cpu": tuple(2**power for power in range(10, 26)), "gpu": tuple(2**power for power in range(10, 30))}
"""Bytes of a buffer, by kind of device."""
STRIDES = (8, 4, 2, 1)
"""Every eighth size is visited first, then what lies between."""
ITEM_BYTES = 4
ROUND_S, MOST_CALLS = 5e-4, 64
VISIT_S, FEWEST_ROUNDS, MOST_ROUNDS = 0.03, 3, 15
LONGEST_SHARE = 0.01
"""Of the time for all points, for one call: longer ones are left out."""
ALIKE = 1.25
"""Two visits agree within this ratio."""
MOST_VISITS = 30
STOP, STEPS = -1, -2
LAYERS, WIDTH, SUB_BATCHES = 4, {"cpu": 1024, "gpu": 4096}, {"cpu": (32, 128), "gpu": (256, 1024)}
"""Linear layers of a step, their sides, and samples of it, by kind of device."""
BUCKET_MB = 1
"""Less than a layer has: DDP then sends each by itself."""
STEPS_S, LONG_STEP_S, FEWEST_STEPS, MOST_STEPS = 1.5, 0.3, 3, 9


class Point(NamedTuple):
    """An operation on a group of nodes x ranks of each, with a buffer of so many bytes."""

    operation: str
    nodes: int
    ranks_per_node: int
    bytes: int

    @property
    def name(self) -> str:
        """In the file of partial measurements."""
        return f"{self.operation} {self.nodes}x{self.ranks_per_node} {self.bytes}"

    @property
    def part(self) -> int:
        """Numbers of a buffer that each rank of the group has."""
        return max(1, math.ceil(self.bytes / ITEM_BYTES / self.ranks))

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.nodes * self.ranks_per_node


def counts(most: int) -> tuple[int, ...]:
    """Return the numbers of ranks that are measured, powers of two and one between two of them.

    >>> counts(1), counts(4), counts(10)
    ((), (2, 3, 4), (2, 3, 4, 6, 8, 10))
    """
    some = {factor << power for factor in (2, 3) for power in range(20)}
    return tuple(sorted({one for one in some if one <= most} | ({most} if most > 1 else set())))


def link_points(joined: Joined) -> tuple[Point, ...]:
    """Return the points of ranks, the most telling first: inside a node, across nodes with one rank each, and both."""
    most = len(joined.nodes), joined.ranks_per_node
    cases = [(1, ranks) for ranks in counts(most[1])] + [(nodes, 1) for nodes in counts(most[0])]
    cases += [(nodes, most[1]) for nodes in counts(most[0]) if most[1] > 1]
    sizes = SIZES["cpu" if joined.device == "cpu" else "gpu"]
    order = dict.fromkeys(at for stride in STRIDES for at in range(0, len(sizes), stride))
    return tuple(
        Point(operation, *case, sizes[at])
        for at in order
        for operation in OPERATIONS
        for case in cases
        if operation != SEND_RECEIVE or case[0] * case[1] == 2
    )


class _Groups:
    """Groups of ranks, made by all ranks in one order, and the calls of each."""

    def __init__(self, joined: Joined, points: Sequence[Point]) -> None:
        self.torch, self.joined = import_torch(), joined
        self.dist = self.torch.distributed
        self.ranks: dict[tuple[int, int], list[int]] = {}
        self._groups: dict[tuple[int, int], Any] = {}
        for case in dict.fromkeys((one.nodes, one.ranks_per_node) for one in points):
            members = [rank for node in joined.nodes[: case[0]] for rank in node[: case[1]]]
            self.ranks[case], self._groups[case] = members, self.dist.new_group(members)

    def call(self, point: Point) -> Callable[[], None] | None:
        """Return what a rank calls for a point; None where it is not of its group."""
        case = (point.nodes, point.ranks_per_node)
        ranks, group, own = self.ranks[case], self._groups[case], self.joined.own.rank
        if own not in ranks:
            return None
        part = point.part
        whole, other = (self.torch.ones(part * len(ranks), device=self.joined.device) for _ in range(2))
        dist, first, last = self.dist, ranks[0], ranks[-1]

        def there_and_back() -> None:
            for source, target in ((first, last), (last, first)):
                (dist.send if own == source else dist.recv)(whole, target if own == source else source, group=group)

        return {
            ALL_REDUCE: lambda: dist.all_reduce(whole, group=group),
            ALL_GATHER: lambda: _call(dist, "all_gather")(whole, other[:part], group=group),
            REDUCE_SCATTER: lambda: _call(dist, "reduce_scatter")(other[:part], whole, group=group),
            ALL_TO_ALL: lambda: dist.all_to_all_single(other, whole, group=group),
            BROADCAST: lambda: dist.broadcast(whole, first, group=group),
            SEND_RECEIVE: there_and_back,
        }[point.operation]

    def largest(self, seconds: Sequence[float]) -> list[float]:
        """Return the largest of every rank's seconds."""
        values = self.torch.tensor(seconds, dtype=self.torch.float64)
        self.dist.all_reduce(values, op=self.dist.ReduceOp.MAX, group=self.joined.control)
        return [float(one) for one in values.tolist()]

    def seconds(self, run: Callable[[], None], times: int) -> float:
        """Return how long a rank takes for so many calls, from a start that all ranks have in common [s]."""
        self.dist.barrier(group=self.joined.control)
        start = time.perf_counter()
        for _ in range(times):
            run()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        """Wait for the device."""
        if self.joined.device != "cpu":
            self.torch.cuda.synchronize()

    def visit(self, point: Point) -> tuple[float, float, int]:
        """Return the time of a call, its spread, and the rounds, as all ranks measured them together."""
        run = self.call(point) or (lambda: None)
        run()
        (once_s,) = self.largest([self.seconds(run, 1)])
        times = min(max(math.ceil(ROUND_S / max(once_s, 1e-7)), 1), MOST_CALLS)
        rounds = min(max(int(VISIT_S / max(once_s * times, 1e-7)), FEWEST_ROUNDS), MOST_ROUNDS)
        every = self.largest([self.seconds(run, times) / times for _ in range(rounds)])
        if point.operation == SEND_RECEIVE:  # there and back
            every = [one / 2 for one in every]
        quarter, median, upper = np.quantile(every, (0.25, 0.5, 0.75)).tolist()
        return median, (upper - quarter) / 1.35, rounds

    def next_of(self, number: int = STOP) -> int:
        """Return the number that rank 0 says, to all."""
        value = self.torch.tensor([number])
        self.dist.broadcast(value, 0, group=self.joined.control)
        return int(value.item())


@dataclass(frozen=True, slots=True)
class Step:
    """A data-parallel step that all ranks took, the slowest rank's medians [s].

    Attributes
    ----------
    layer_bytes : tuple of int, gradients of each layer, which are sent by themselves as soon as they are there
    forward_s, backward_s : of passes without messages
    with_messages_s : both passes with messages
    """

    layer_bytes: tuple[int, ...]
    forward_s: float
    backward_s: float
    with_messages_s: float


def time_steps(joined: Joined, groups: _Groups) -> tuple[Step, ...]:
    """Return steps of DDP on all ranks, with its messages and without in turn."""
    torch = groups.torch
    kind, width = ("cpu", WIDTH["cpu"]) if joined.device == "cpu" else ("gpu", WIDTH["gpu"])
    torch.manual_seed(0)
    layers = [one for _ in range(LAYERS) for one in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    network = torch.nn.Sequential(*layers).to(joined.device)
    devices = None if joined.device == "cpu" else [joined.device]
    model = torch.nn.parallel.DistributedDataParallel(network, device_ids=devices, bucket_cap_mb=BUCKET_MB)
    steps = []
    for samples in SUB_BATCHES[kind]:
        batch = torch.randn(samples, width, device=joined.device)

        def passes(*, sends: bool, batch: Any = batch) -> tuple[float, float]:
            with contextlib.nullcontext() if sends else model.no_sync():
                groups.dist.barrier(group=joined.control)
                start = time.perf_counter()
                loss = model(batch).square().mean()
                groups.wait()
                middle = time.perf_counter()
                loss.backward()
                groups.wait()
            return middle - start, time.perf_counter() - middle

        passes(sends=True)
        passes(sends=True)  # DDP puts its buckets into the order of the first
        (once_s,) = groups.largest([sum(passes(sends=True))])
        rounds = min(max(int(STEPS_S / max(once_s, 1e-6) / 2), FEWEST_STEPS), MOST_STEPS)
        pairs = [(*passes(sends=False), sum(passes(sends=True))) for _ in range(rounds)]
        flat = groups.largest([one for pair in pairs for one in pair])
        medians = [statistics.median(flat[at::3]) for at in range(3)]
        sizes = (ITEM_BYTES * (width * width + width),) * LAYERS
        steps.append(Step(sizes, *medians))
        if once_s > LONG_STEP_S:  # one tells enough
            break
    return tuple(steps)


def _call(dist: Any, operation: str) -> Callable[..., Any]:
    """Return an operation on one tensor, whose names PyTorch has changed."""
    names = (f"{operation}_single", f"{operation}_into_tensor", f"{operation}_tensor")
    found: Callable[..., Any] = next(getattr(dist, name) for name in names if hasattr(dist, name))
    return found


@dataclass(frozen=True, slots=True)
class Visits:
    """Visits of points, by point: (time, spread, rounds) each."""

    of: Mapping[Point, Sequence[tuple[float, float, int]]]

    def agreed(self) -> Iterator[tuple[Point, float, float, int]]:
        """Yield points with time, spread and rounds: of the visits like the fastest two that agree, or the only one."""
        for point, visits in self.of.items():
            if len(visits) == 1:
                yield point, *visits[0]
            pairs = itertools.pairwise(sorted(visits))
            fastest_s = next((low[0] for low, high in pairs if high[0] <= ALIKE * low[0]), None)
            if fastest_s is not None:
                alike = [one for one in visits if fastest_s <= one[0] <= ALIKE * fastest_s]
                times, spreads, rounds = zip(*alike, strict=True)
                yield point, statistics.median(times), statistics.median(spreads), sum(rounds)

    @property
    def disturbed(self) -> tuple[Point, ...]:
        """Points of which no two visits agree."""
        left = {point for point, *_ in self.agreed()}
        return tuple(point for point in self.of if point not in left)


@contextlib.contextmanager
def _threads(joined: Joined, number: int) -> Iterator[_Groups]:
    torch = import_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield _Groups(joined, link_points(joined))
    finally:
        torch.set_num_threads(before)


def take_part(joined: Joined, threads: int = 1) -> None:
    """Measure with the others what rank 0 says, until it ends."""
    points = link_points(joined)
    with _threads(joined, threads) as groups:
        while (number := groups.next_of()) != STOP:
            if number == STEPS:
                time_steps(joined, groups)
            else:
                groups.visit(points[number])


def measure_points(
    joined: Joined, for_s: float, earlier: Earlier, partial: Path, say: Callable[[int, int], None], *, threads: int = 1
) -> tuple[Visits, tuple[Step, ...]]:
    """Return what rank 0 and the others measure in so many seconds, less what ``earlier`` used, and steps behind it.

    Each visit is kept in ``partial``; ``say`` is told points that are done and all.
    """
    points = link_points(joined)
    numbers = {point.name: at for at, point in enumerate(points)}
    visits: dict[Point, list[tuple[float, float, int]]] = {}
    for one in earlier.measured:
        if one.name in numbers:
            visits.setdefault(points[numbers[one.name]], []).append((one.time_s, one.spread_s, one.repeats))
    start, used_s = time.perf_counter(), earlier.used_s
    with _threads(joined, threads) as groups:

        def visit(point: Point) -> None:
            groups.next_of(numbers[point.name])
            time_s, spread_s, rounds = groups.visit(point)
            visits.setdefault(point, []).append((time_s, spread_s, rounds))
            now_s = used_s + time.perf_counter() - start
            append(partial, [Measured(point.name, time_s, spread_s, rounds, time_s, now_s)])
            say(len(visits), len(points))

        for point in _order(points, visits, for_s):
            if used_s + time.perf_counter() - start >= for_s:
                break
            visit(point)
        steps: tuple[Step, ...] = ()
        if joined.own.size > 1:
            groups.next_of(STEPS)
            steps = time_steps(joined, groups)
        groups.next_of(STOP)
    return Visits(visits), steps


def _order(
    points: Sequence[Point], visits: Mapping[Point, Sequence[tuple[float, float, int]]], for_s: float
) -> Iterator[Point]:
    """Yield the points to visit: all once, then all again and again, in an order by chance."""

    def is_long(point: Point) -> bool:
        alike = [(one.bytes, seen[0][0]) for one, seen in visits.items() if one[:3] == point[:3]]
        return any(size <= point.bytes and seconds > LONGEST_SHARE * for_s for size, seconds in alike)

    for number in range(1, MOST_VISITS + 1):
        again = list(points)
        if number > 1:
            random.Random(number).shuffle(again)  # noqa: S311 - an order, no secret
        yield from (one for one in again if len(visits.get(one, ())) < number and not is_long(one))


def rows_of(joined: Joined, visits: Visits, accelerator: str) -> list[Mapping[str, Any]]:
    """Return rows as of a samples file."""
    return [
        {
            "kind": point.operation, "operation": point.operation, "library": joined.library, "device": accelerator,
            "nodes": point.nodes, "ranks_per_node": point.ranks_per_node, "ranks": point.ranks,
            "bytes": point.part * point.ranks * ITEM_BYTES, "time_s": time_s, "spread_s": spread_s, "repeats": rounds,
        }
        for point, time_s, spread_s, rounds in visits.agreed()
    ]  # fmt: skip
