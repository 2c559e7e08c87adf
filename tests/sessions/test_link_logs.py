"""Logs of nccl-tests, rccl-tests and OSU micro-benchmarks, read by ``planner calibrate --samples``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner import catalog
from planner.costs.collectives import collective_s
from planner.domain.calibration import Calibration
from planner.domain.messages import Groups

Run = Callable[..., tuple[int, str, str]]
START_S, BYTE_S = 20e-6, 1e-11
HEADER = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
C13 = f"""\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824 step: 4(factor)
{HEADER}
     1048576        262144     float     sum      -1    312.5    3.36    5.87      0
   268435456      67108864     float     sum      -1    32950    8.15   14.26      0
"""


def nccl(
    hosts: str = "h", ranks: int = 8, device: str = "Tesla V100-SXM2-16GB", test: str = "all_reduce", top: str = ""
) -> str:
    """Return a log of ranks on each of some hosts: 8 B to 128 MiB at 20 us and 0.01 ns a byte around a ring."""
    p, row = len(hosts) * ranks, "#  Rank {:2d} Group 0 Pid 1 on {} device {} [0000:00] {}"
    share = (2 if test == "all_reduce" else 1) * (p - 1) / p
    lines = [
        f"# Collective test starting: {test}_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 graph: 0",
        *([top] if top else []),
        "# Using devices",
        *(row.format(rank, hosts[rank // ranks], rank % ranks, device) for rank in range(p)),
        HEADER + HEADER.partition("root")[2],
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
    ]
    for size in (2**i for i in range(3, 28)):
        seconds = START_S + share * size * BYTE_S
        rate = size / seconds / 1e9
        times = f"{seconds * 1e6:8.3f} {rate:7.2f} {rate * share:7.2f}      0"
        lines.append(f"{size:12d} {size // 4:12d}     float     sum      -1 {times} {times}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 19.7"]) + "\n"


def osu(title: str = "Allreduce", top: str = "") -> str:
    rows = (f"{2**i:<12d}{30 + 2**i * 0.002:>18.2f}\n" for i in range(2, 21))
    return (
        f"{top}# OSU MPI {title}{' ' * bool(title)}Latency Test v5.6.2\n# Size       Avg Latency(us)\n{''.join(rows)}"
    )


def fitted(run: Run, *logs: str, options: tuple[str, ...] = ()) -> Calibration:
    Path("logs").mkdir()
    for number, log in enumerate(logs):
        Path(f"logs/{number}.log").write_text(log)
    code, _, err = run("calibrate", "--samples", "logs", "--out", "links.json", *options)
    assert (code, err) == (0, "")
    return catalog.find_calibration("links.json")


def seconds(calibration: Calibration, size: float, nodes: int, ranks: int) -> float:
    (entry,) = calibration.entries
    groups = Groups(np.array([nodes]), np.array([ranks]), np.ones(1))
    return float(collective_s(entry, entry.kind, np.array([size]), groups)[0, 0])


def test_logs_of_several_ranks_and_nodes_give_one_link(run: Run) -> None:
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in nccl("ab").splitlines())
    found = fitted(run, nccl(ranks=2), nccl(ranks=4), nccl(ranks=8), tagged)
    assert (found.accelerator, found.entries[0].library, found.entries[0].samples) == ("v100-sxm2-16gb", "nccl", 100)
    for nodes, ranks in ((1, 2), (1, 8), (2, 8)):
        p = nodes * ranks
        expected = START_S + 2 * (p - 1) / p * 1e6 * BYTE_S
        assert seconds(found, 1e6, nodes, ranks) == pytest.approx(expected, rel=0.01)
    assert 0 < (found.entries[0].held_out_error or 0) < 0.01
    assert found.entries[0].notes.startswith("a number of ranks left out between others is missed by")


def test_ranks_of_one_process_follow_from_its_rates(run: Run) -> None:
    found = fitted(run, C13)
    assert (found.accelerator, found.entries[0].settings["cases"]) == ("any", (1.0, 8.0))
    assert seconds(found, 2.0**20, 1, 8) == pytest.approx(312.5e-6)


@pytest.mark.parametrize(
    ("log", "options", "library", "cases"),
    [
        (osu(), ("--nodes", "4", "--gpus-per-node", "2"), "host", (4.0, 2.0)),
        (osu("Allgather", "# nodes: 4\n# ranks_per_node: 1\n"), (), "host", (4.0, 1.0)),
        (osu().replace("MPI", "MPI-CUDA"), ("--nodes", "4", "--gpus-per-node", "2"), "", (4.0, 2.0)),
        (nccl(device="AMD Instinct MI300X", top="rccl-tests: Version develop:33cc4df"), (), "rccl", (1.0, 8.0)),
        (nccl(test="reduce_scatter"), ("--cluster", "dgx1-v100"), "nccl", (1.0, 8.0)),
    ],
)
def test_what_a_log_does_not_say_is_stated(
    log: str, options: tuple[str, ...], library: str, cases: tuple[float, ...], run: Run
) -> None:
    (entry,) = fitted(run, log, options=options).entries
    assert (entry.library, entry.settings["cases"]) == (library, cases)


WHOLE, CUT = nccl(), "log must be whole, got one that ends at size "
BAD = {
    "cut off in a row": (WHOLE[: len(WHOLE) * 2 // 3], CUT),
    "cut off between rows": (
        "\n".join(WHOLE.splitlines()[:-4]) + "\n",
        CUT,
    ),
    "cut off in OSU's row": (osu("", "# nodes: 2\n")[:-3], CUT),
    "wrong values": (WHOLE.replace("      0", "      3", 1), "#wrong must be 0, got 3: "),
    "no ranks": (osu(), "log must say on how many nodes it ran, with how many ranks each, "),
    "no operation": (
        WHOLE.replace("# Collective test starting: all_reduce_perf\n", "").replace("  sum ", " none "),
        "log must name its operation, got none; call the file by its test, such as all_gather_perf.log",
    ),
    "a rate": (osu().replace("Latency Test", "Bandwidth Test"), "test must be of latency, "),
    "unlike nodes": (WHOLE.replace("on h device 7", "on g device 7"), "nodes must have equally many ranks, got 7, 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_logs_are_refused_by_line(name: str, run: Run) -> None:
    log, words = BAD[name]
    Path("some.log").write_text(log)
    code, out, err = run("calibrate", "--samples", "some.log", "--out", "links.json")
    assert (code, out) == (3, "")
    assert err.startswith("planner: some.log: line ")
    assert words in err
    assert not Path("links.json").exists()


@pytest.mark.parametrize(
    ("logs", "options", "code", "words"),
    [
        (
            (WHOLE, nccl(device="NVIDIA L40S")),
            (),
            3,
            "device must be v100-sxm2-16gb, as of the others, got 'NVIDIA L40S'",
        ),
        ((WHOLE,), ("--cluster", "hkbu-k80"), 3, "device must be k80, as of the others, got 'Tesla V100-SXM2-16GB'"),
        ((WHOLE,), ("--nodes", "1,2"), 2, "--nodes must be one number, that of the logs that do not say, got '1,2'"),
    ],
)
def test_logs_of_other_devices_and_lists_are_refused(
    logs: tuple[str, ...], options: tuple[str, ...], code: int, words: str, run: Run
) -> None:
    Path("logs").mkdir()
    for number, log in enumerate(logs):
        Path(f"logs/{number}.out").write_text(log)
    found = run("calibrate", "--samples", "logs", "--out", "links.json", *options)
    assert found[:2] == (code, "")
    assert words in found[2]


def test_options_of_logs_need_samples(run: Run) -> None:
    code, _, err = run("calibrate", "--cluster", "dgx-a100", "--out", "links.json")
    assert code == 2
    assert err == "planner: --cluster must be given with --samples, to say of which links, got 'dgx-a100'\n"


def test_times_that_fall_with_bytes_give_no_link(run: Run) -> None:
    rows = (f"{2**i:<12d}{1000 - i:>18.2f}\n" for i in range(2, 21))
    Path("some.log").write_text(osu().rpartition("(us)\n")[0] + "(us)\n" + "".join(rows))
    arguments = ("--samples", "some.log", "--nodes", "2", "--gpus-per-node", "1", "--out", "links.json")
    code, _, err = run("calibrate", *arguments)
    assert code == 5
    assert "times must grow with bytes, got times that do not" in err


def test_measured_links_serve_inside_and_the_cluster_s_own_across(run: Run) -> None:
    """One node as measured; across nodes the data sheet, inside as measured; sizes outside the log are told."""
    fitted(run, C13)
    terms = {}
    for calibration in ((), ("--calibration", "links.json")):
        arguments = ("--network", "vgg16", "--cluster", "dgx1-v100", "--nodes", "1,2", "--sub-batch", "8", "--json")
        code, out, _ = run("predict", *arguments, *calibration)
        assert code == 0
        for one in json.loads(out)["predictions"]:
            (term,) = (term for term in one["terms"] if term["name"] == "all_reduce")
            terms[bool(calibration), one["configuration"]["nodes"]] = term
    out = run("predict", *arguments[:-1], "--calibration", "links.json")[1]
    assert "messages between GPUs of dgx1-v100 were measured at other sizes or ranks" in " ".join(out.split())
    assert terms[True, 1]["seconds"] == pytest.approx(2 * 7 / 8 * 553.4e6 / 14.26e9, rel=0.1)
    assert terms[True, 2]["seconds"] > terms[True, 1]["seconds"] > 3 * terms[False, 2]["seconds"]
