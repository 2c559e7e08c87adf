"""Ranks that messages are timed between: who they are by the environment of a launcher, that all came and are alike.

A launcher's variables say the rank of a process; PyTorch's own go before those of others. Ranks meet in a store that
rank 0 keeps, or the agent of ``torchrun``. Each says there what it runs on; rank 0 lets them begin, or says why not.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from planner.errors import NOTHING, ParameterError
from planner.probes.precisions import import_torch

__all__ = ["ARRIVAL_S", "Joined", "Rank", "join", "losses_named", "rank_of"]

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
            _check_alike(
                [json.loads(store.get(f"planner/{rank}")) for rank in _arrived(store, own.size, until_s, gone)]
            )
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
    """Return the store where ranks meet; tried again and again, so that signals are heard between.

    ParameterError: it cannot be reached.
    """
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


def _arrived(store: Any, size: int, until_s: float, gone: Tell) -> range:
    """Return all ranks once each has come.

    ParameterError: not in time; those that are missing are named.
    """
    missing = list(range(size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"planner/{rank}"])]
        ended = gone() if missing else ""
        if ended or (missing and time.monotonic() > until_s):
            one = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
            got = f"nothing of {one}{f' ({ended})' if ended else ''}"
            raise ParameterError("ranks of --links", f"{size} that come in time", got, "nothing was written")
        time.sleep(0.02)
    return range(size)


def _check_alike(every: list[dict[str, str]]) -> None:
    """Refuse ranks with other software or devices than rank 0's; both are shown."""
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
