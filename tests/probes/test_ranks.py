"""Ranks of launchers, what is measured between them, and which visits of a point agree."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from planner.domain.messages import ALL_REDUCE, SEND_RECEIVE
from planner.errors import ParameterError
from planner.probes.ranks import Joined, Point, Rank, Visits, join, link_points, rank_of, rows_of

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "h0",
    "MASTER_PORT": "5",
}
SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[07-09,12]",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"RANK": "3"}, None),
        (TORCHRUN, (3, 8, 1, "1", "h0", 5)),
        (SRUN, (5, 8, 1, "2", "node07", 29418)),
        (SRUN | {"SLURM_STEP_NODELIST": "a1,a2", "MASTER_PORT": "99"}, (5, 8, 1, "2", "a1", 99)),
        (MPIRUN, (1, 2, 1, None, "127.0.0.1", 29411)),
        (SRUN | TORCHRUN, (3, 8, 1, "1", "h0", 5)),
    ],
)
def test_launchers_say_which_rank_a_process_is(environment: Mapping[str, str], found: tuple[Any, ...] | None) -> None:
    own = rank_of(environment)
    assert (own is None) == (found is None)
    if own is not None and found is not None:
        told = (own.rank, own.size, own.local, own.node if found[3] else None, own.address, own.port)
        assert told == found


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR must be set where ranks may be on several nodes"),
        (TORCHRUN | {"RANK": "x"}, "variables of torchrun must be whole numbers, got 'RANK=x, WORLD_SIZE=8, LOCAL"),
    ],
)
def test_what_a_launcher_leaves_open_is_asked_for(environment: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        rank_of(environment)


def joined(*nodes: tuple[int, ...]) -> Joined:
    size = sum(map(len, nodes))
    return Joined(Rank(0, size, 0, "n", "127.0.0.1", 1), nodes, "cpu", "gloo", None, None)


def test_groups_inside_across_and_both_are_measured_and_pairs_send() -> None:
    points = link_points(joined((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)))
    cases = {(one.nodes, one.ranks_per_node) for one in points if one.operation == ALL_REDUCE}
    assert cases == {(1, 2), (1, 3), (1, 4), (2, 1), (3, 1), (2, 4), (3, 4)}
    assert {one[1:3] for one in points if one.operation == SEND_RECEIVE} == {(1, 2), (2, 1)}
    assert len({one.name for one in points}) == len(points)
    assert link_points(joined((0,))) == ()


@pytest.mark.parametrize(
    ("times", "agreed"),
    [
        ((1.0,), 1.0),
        ((1.0, 1.2), 1.1),
        ((1.0, 1.24, 1.1, 3.0), 1.1),
        ((1.0, 2.0), None),
        ((1.0, 2.0, 4.0, 2.2), 2.1),
        ((5.0, 1.0, 5.0, 1.1), 1.05),
    ],
)
def test_of_visits_the_fastest_two_that_agree_count(times: tuple[float, ...], agreed: float | None) -> None:
    point = Point(ALL_REDUCE, 1, 3, 1024)
    visits = Visits({point: [(one, 0.1, 5) for one in times]})
    rows = rows_of(joined((0, 1, 2)), visits, "cpu-x")
    assert [row["time_s"] for row in rows] == ([] if agreed is None else [pytest.approx(agreed)])
    assert visits.disturbed == ((point,) if agreed is None else ())
    assert all(row["bytes"] == 1032 and row["ranks"] == 3 for row in rows)  # an equal part for every rank


def meet(*ranks: Callable[[int], Any]) -> list[str]:
    """Return what each of some ranks says that meet in this process."""
    said = [""] * len(ranks)

    def run(at: int) -> None:
        try:
            ranks[at](at)
        except ParameterError as error:
            said[at] = str(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(ranks))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return said


def rank(number: int, size: int, port: int) -> Rank:
    return Rank(number, size, number, f"host{number}", "127.0.0.1", port)


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_rank_that_never_comes_is_named(port: int) -> None:
    pytest.importorskip("torch")
    (said,) = meet(lambda at: join(rank(at, 3, port), "cpu", {}, arrival_s=0.2))
    rule = "ranks of --links must be 3 that come in time, got 'nothing of ranks 1, 2'; nothing was written"
    assert said == rule
    (said,) = meet(lambda at: join(rank(at, 2, port + 1), "cpu", {}, gone=lambda: "rank 1 ended with 3"))
    assert said.endswith("got 'nothing of rank 1 (rank 1 ended with 3)'; nothing was written")


def test_ranks_with_other_software_are_refused_and_both_shown(port: int) -> None:
    pytest.importorskip("torch")
    of = [lambda at, v=v: join(rank(at, 2, port), "cpu", {"pytorch": v}, arrival_s=5.0) for v in ("2.1", "2.2")]
    first, second = meet(*of)
    rule = "pytorch of rank 1 must be as of rank 0, '2.1' on host0, got \"'2.2' on host1\"; run the same on all nodes"
    assert first.startswith(rule)
    assert "pytorch of rank 1" in second
