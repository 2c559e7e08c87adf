"""Drafts of cluster files: what texts of Slurm, the driver and the system say, and what is asked."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.domain.cluster import Cluster, MixedCluster
from planner.errors import InputFileError
from planner.formats.detected import _expanded, _short, draft, known_of, read_reports
from planner.probes.machine import likely_names

SINFO = """\
NODELIST            NODES  PARTITION  STATE  CPUS  MEMORY  GRES
gpu[001-004]        4      train      idle   64    515000  gpu:a100:4
gpu[005-006]        2      train      mix    128   1031000 gpu:a100:8(S:0-1),nvme:1
gpu[003-004]        2      all*       mix    64+   515000+ gpu:a100:4
login1              1      all*       idle   8     16000   (null)
"""
GRES = """\
AutoDetect=off
NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-3]  # two lines of a node
NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[4-7]
"""
SHOWN = "NodeName=n1 Arch=x86_64\n   CPUTot=16 Gres=gpu:nvidia_a100-sxm4-40gb:2(S:0)\n   RealMemory=1024 Sockets=1\n"
OLD_JSON = {"nodes": [{"name": f"n{at}", "cpus": 16, "real_memory": 1024, "gres": "gpu:3090:2"} for at in range(3)]}
NEW_JSON = {
    "sinfo": [
        {
            "nodes": {"nodes": ["n1", "n2"]}, "cpus": {"maximum": 16}, "memory": {"maximum": 1024},
            "gres": {"total": "gpu:l40s:2"},
        }
    ]
}  # fmt: skip
QUERY = "name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max\n"
BUS = """\
03:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 41)
17:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)
        LnkCap: Port #0, Speed 16GT/s, Width x16, ASPM not supported
65:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)
"""
FILES = """\
/sys/class/infiniband/mlx5_0/ports/1/rate:200 Gb/sec (4X HDR)
/sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_0/ports/1/link_layer:InfiniBand
/sys/class/infiniband/mlx5_1/ports/1/rate:200 Gb/sec (4X HDR)
/sys/class/infiniband/mlx5_1/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_1/ports/1/link_layer:InfiniBand
/sys/class/infiniband/mlx5_2/ports/1/rate:100 Gb/sec (4X EDR)
/sys/class/infiniband/mlx5_2/ports/1/state:1: DOWN
/sys/class/infiniband/mlx5_2/ports/1/link_layer:InfiniBand
/sys/class/net/eno1/speed:25000
/sys/class/net/docker0/speed:100000
/sys/module/nvidia_peermem/initstate:live
"""
ETHERNET = "/sys/class/net/eno1/speed:25000\n/sys/class/net/eno2/speed:-1\n/sys/class/net/docker0/speed:100000\n"


def query(name: str, memory_mib: int, count: int, link: str = "4, 16") -> str:
    return QUERY + f"{name}, {memory_mib} MiB, {link}\n" * count


def topology(*rows: str) -> str:
    """Return what ``nvidia-smi topo -m`` prints of paths between GPUs, with an adapter."""
    head = "\t".join(f"GPU{at}" for at in range(len(rows)))
    body = "".join(f"GPU{at}  {row}  PIX 0-31 0\n" for at, row in enumerate(rows))
    return f"\t{head}\tNIC0\tCPU Affinity\tNUMA Affinity\n{body}NIC0\tPIX\tPIX\t X\n\nLegend:\n\n  X    = Self\n"


def even(count: int, path: str) -> str:
    return topology(*(" ".join("X" if to == at else path for to in range(count)) for at in range(count)))


CUBE = topology(  # DGX-1: six links of each GPU, of which some lead twice to one other
    "X NV1 NV1 NV2 NV2 SYS SYS SYS", "NV1 X NV2 NV1 SYS NV2 SYS SYS", "NV1 NV2 X NV2 SYS SYS NV1 SYS",
    "NV2 NV1 NV2 X SYS SYS SYS NV1", "NV2 SYS SYS SYS X NV1 NV1 NV2", "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2", "SYS SYS SYS NV1 NV2 NV1 NV2 X",
)  # fmt: skip
PAIRS = topology("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")

ANSWERS = {
    "nodes": 1, "gpu": '"a100-sxm4-40gb"', "kind": '"nvlink"', "bandwidth_GBps": 20, "latency_us": 3,
    "nics_per_node": 2, "memory_bandwidth_GBps": 900, "peak_TFLOPps": "{ fp32 = 30 }",
}  # fmt: skip
"""What a person answers to each question."""
QUESTION = re.compile(r"# (\w+) = \?")


def answered(text: str, path: Path) -> Cluster | MixedCluster:
    """Return the cluster of a draft whose questions a person has answered; what is all comment stays so."""
    lines, is_comment = [], False
    for line in text.splitlines():
        if line.lstrip("# ").startswith("["):
            is_comment = line.startswith("#")
        question = QUESTION.match(line)
        lines.append(line if is_comment or not question else f"{question[1]} = {ANSWERS[question[1]]}")
    path.write_text("\n".join(lines))
    return catalog.find_any_cluster(str(path))


def asked_of(*texts: str) -> tuple[str, set[str]]:
    text, asked = draft(read_reports({f"text {at}": text for at, text in enumerate(texts)}), likely_names)
    return text, {key.replace("links.", "") for key in asked}


def facts(cluster: Cluster | MixedCluster) -> dict[str, Any]:
    groups = [one.cluster for one in cluster.groups] if isinstance(cluster, MixedCluster) else [cluster]
    first = groups[0]
    intra, inter = first.intra_node, first.inter_node
    return {
        "groups": [(one.nodes, one.node.gpus) for one in groups],
        "gpu": first.node.accelerator.name,
        "cpus": first.node.cpu_threads,
        "memory": first.node.host_memory_bytes and first.node.host_memory_bytes / 2**30,
        "intra": intra and (intra.kind, intra.bytes_per_s / 1e9),
        "inter": inter and (inter.kind, inter.bytes_per_s / 1e9, inter.nics_per_node, inter.gpu_direct),
    }


UNKNOWN_INTRA = {"intra_node.kind", "intra_node.bandwidth_GBps", "intra_node.latency_us"}
UNKNOWN_INTER = {f"inter_node.{key}" for key in ("kind", "bandwidth_GBps", "nics_per_node", "latency_us")}
LATENCY = {"intra_node.latency_us"}
HERE = {"nodes", *LATENCY}
A100 = query("NVIDIA A100-SXM4-40GB", 40960, 4)
CASES: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any], set[str]]] = {
    "gres.conf": ((GRES,), {"groups": [(2, 8)]}, {"node.gpu", *UNKNOWN_INTRA, *UNKNOWN_INTER}),
    "scontrol": ((SHOWN,), {"groups": [(1, 2)], "gpu": "a100-sxm4-40gb", "cpus": 16, "memory": 1}, UNKNOWN_INTRA),
    "sinfo --json": ((json.dumps(OLD_JSON),), {"groups": [(3, 2)], "cpus": 16},
                     {"node.gpu", *UNKNOWN_INTRA, *UNKNOWN_INTER}),
    "newer": ((json.dumps(NEW_JSON),), {"groups": [(2, 2)], "gpu": "l40s"}, UNKNOWN_INTRA | UNKNOWN_INTER),
    "topo": ((even(8, "NV12"),), {"groups": [(1, 8)], "intra": ("nvswitch", 20)},
             {"node.gpu", "intra_node.bandwidth_GBps", *HERE}),
    "hgx": ((even(8, "NV18"), query("NVIDIA H100 80GB HBM3", 81559, 8, "5, 16")),
            {"gpu": "h100-sxm5-80gb", "intra": ("nvswitch", 450)}, HERE),
    "mesh": ((even(4, "NV4"), A100), {"gpu": "a100-sxm4-40gb", "intra": ("nvlink", 300)}, HERE),
    "cube": ((CUBE, query("Tesla V100-SXM2-16GB", 16160, 8, "3, 16")), {"intra": ("nvlink", 150)}, HERE),
    "bridges": ((PAIRS, query("NVIDIA GeForce RTX 3090", 24576, 4)), {"gpu": "rtx-3090", "intra": ("pcie4", 20)},
                HERE | {"intra_node.bandwidth_GBps"}),
    "pcie": ((even(2, "PHB"), query("NVIDIA L4", 23034, 2)), {"intra": ("pcie4", 20)},
             HERE | {"intra_node.bandwidth_GBps"}),
    "bus": ((BUS, even(2, "SYS")), {"gpu": "a100-sxm4-80gb", "intra": ("pcie4", 20)},
            HERE | {"intra_node.bandwidth_GBps"}),
    "list": (("GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n",), {"gpu": "h200-sxm-141gb"},
             {"nodes", *UNKNOWN_INTRA}),
    "unbundled": ((query("NVIDIA RTX 5070", 12288, 1),), {"groups": [(1, 1)], "gpu": "rtx-5070"},
                  {"nodes", "accelerator.memory_bandwidth_GBps", "accelerator.peak_TFLOPps"}),
    "adapters": ((GRES, FILES), {"inter": ("infiniband", 25, 2, True)},
                 {"node.gpu", "inter_node.latency_us", *UNKNOWN_INTRA}),
    "ethernet": ((GRES, ETHERNET), {"inter": ("ethernet", 3.125, 1, None)},
                 {"node.gpu", "inter_node.latency_us", *UNKNOWN_INTRA}),
}  # fmt: skip
"""Texts, what the file says once its questions are answered, and the questions."""


@pytest.mark.parametrize("case", CASES)
def test_a_draft_has_facts_and_questions_and_is_read_once_these_are_answered(case: str, tmp_path: Path) -> None:
    texts, said, questions = CASES[case]
    text, asked = asked_of(*texts)
    assert asked == questions
    cluster = facts(answered(text, tmp_path / "mine.toml"))
    assert {key: cluster[key] for key in said} == said
    for line in text.splitlines()[5:]:
        assert not line or line.lstrip("# ").startswith("[") or re.search(r" = .* {2,}# [\w/]", line), line


def test_groups_of_nodes_are_those_of_sinfo_and_each_node_counts_once(tmp_path: Path) -> None:
    text, asked = asked_of(SINFO, A100, even(4, "NV4"))
    cluster = facts(answered(text, tmp_path / "mine.toml"))
    assert cluster["groups"] == [(4, 4), (2, 8)]
    assert (cluster["gpu"], cluster["intra"]) == ("a100-sxm4-40gb", ("nvlink", 300))
    assert "# Nodes without GPUs are left out: login1." in text
    assert "# gpu = ?" in text, "the driver of a node of four says nothing of those of eight"
    assert "a100-sxm4-80gb or a100-sxm4-40gb" in text
    assert asked >= UNKNOWN_INTER


@given(st.sets(st.tuples(st.sampled_from(("gpu", "n-a", "c1x")), st.from_regex(r"[0-9]{0,4}", fullmatch=True))))
def test_names_are_shown_as_the_ranges_that_slurm_reads(parts: set[tuple[str, str]]) -> None:
    names = [start + digits for start, digits in parts]
    assert sorted(_expanded(_short(names).replace(" ", ","), "a.txt")) == sorted(names) or len(_short(names)) > 200


def test_a_gap_of_a_range_is_shown() -> None:
    text, _ = asked_of("NodeName=gpu[001-016,020] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n")
    assert re.search(r"^nodes = 17 +# text 0: gpu\[001-016,020\]$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        *(
            (one, True)
            for one in ("idle", "mix", "mixed", "alloc", "allocated", "comp", "resv", "idle~", "powered_down")
        ),
        *(
            (one, False)
            for one in ("down*", "down", "drain", "drained*", "draining", "drng", "fail", "failing", "idle*")
        ),
        *((one, False) for one in ("IDLE+DRAIN", "inval", "error", "future", "maint*")),
    ],
)
def test_nodes_that_start_no_jobs_are_left_out_and_said(state: str, *, runs: bool) -> None:
    """In a table, in a document of both ages, and as scontrol shows a node."""
    table = f"NODELIST STATE GRES\nn[1-3] idle gpu:a100:4\nn[4-5] {state} gpu:a100:4\n"
    node = [{"name": f"n{at}", "gres": "gpu:a100:4", "state": "idle" if at < 4 else state} for at in range(1, 6)]
    shown = [f"NodeName=n{at} Gres=gpu:a100:4\n   State={'IDLE' if at < 4 else state}\n" for at in range(1, 6)]
    sizes = {"cpus": {"maximum": 1}, "memory": {"maximum": 1}, "gres": {"total": "gpu:a100:4"}}
    of = [(["n1", "n2", "n3"], ["IDLE"]), (["n4", "n5"], state.upper().split("+"))]
    new = [{"nodes": {"nodes": names}, "node": {"state": states}, **sizes} for names, states in of]
    for text in (table, json.dumps({"nodes": node}), "".join(shown), json.dumps({"sinfo": new})):
        drawn, _ = asked_of(text)
        assert f"nodes = {5 if runs else 3} " in drawn
        assert ("are left out: n[4-5] (2)." in drawn) != runs
        assert (f"# Nodes in state {state.lower()} " in drawn) != runs


def test_where_no_node_runs_jobs_all_are_counted() -> None:
    text, _ = asked_of("NODELIST STATE GRES\nn[1-3] down* gpu:a100:4\n")
    assert re.search(r"^nodes = 3 +# text 0: n\[1-3\]; down\*$", text, re.MULTILINE)


@given(st.integers(2, 8), st.integers(0, 8), st.integers(0, 8))
def test_what_texts_say_otherwise_is_a_question_with_both_sources(slurm: int, devices: int, paths: int) -> None:
    texts = {"slurm": f"NODELIST GRES\nn[1-4] gpu:a100:{slurm}\n"}
    texts |= {"driver": query("NVIDIA A100-SXM4-40GB", 40960, devices)} if devices else {}
    texts |= {"paths": even(paths, "SYS")} if paths else {}
    text, asked = draft(read_reports(texts), likely_names)
    other = {name: count for name, count in (("driver", devices), ("paths", paths)) if count not in (0, slurm)}
    assert ("node.gpus" in asked) == bool(other)
    line = next(line for line in text.splitlines() if "gpus = " in line)
    assert all(f"{name}: {count}, which is right?" in line for name, count in {**other}.items())
    assert "slurm: gpu:a100" in line
    assert ("paths: SYS at worst" in text) == bool(paths)


def test_a_type_that_the_driver_names_otherwise_and_a_number_of_no_group_are_questions() -> None:
    table = "NODELIST GRES\nn[1-4] gpu:h100:4\n"
    text, asked = asked_of(table, query("NVIDIA A100-SXM4-40GB", 40960, 4))
    assert "text 0: gpu:h100:4; text 1: NVIDIA A100-SXM4-40GB; which is right?" in text
    assert "node.gpu" in asked
    text, _ = asked_of(f"{table}b[1-2] gpu:h100:8\n", even(2, "SYS"))
    assert "# ? Which nodes are these, GPUs of a node: 2 by text 1? No group below has so many of their kind." in text


ODD = ("", "\x1b", "\n", '"', "[", "0", "99999999999999999999", "-")
SAMPLES = (SINFO, GRES, SHOWN, json.dumps(OLD_JSON), json.dumps(NEW_JSON), A100, BUS, FILES, ETHERNET, CUBE, PAIRS)


@given(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_damaged_text_is_refused_or_becomes_a_file_of_facts_and_questions(texts: list[str], random: Random) -> None:
    damaged = []
    for text in texts:
        words = re.split(r"(\W)", text)
        for _ in range(random.randrange(8)):
            at = random.randrange(len(words))
            words[at] = random.choice([*ODD, random.choice(words)])
        damaged.append("".join(words))
    try:
        text, _ = asked_of(*damaged)
    except InputFileError:
        return
    assert tomllib.loads(text)["format"] == "planner/cluster"
    assert max(map(len, text.splitlines())) < 1000


@pytest.mark.parametrize(
    ("host", "shared"), [("gpu001", [True, False]), ("gpu006", [False, True]), ("login", [False, False])]
)
def test_what_this_machine_has_is_said_of_its_own_group_of_nodes_alone(host: str, shared: list[bool]) -> None:
    seen = read_reports({"sinfo": SINFO, "nvidia-smi": A100, "topo": even(4, "NV4"), "/sys": FILES}, host)
    text, asked = draft(seen, likely_names)
    assert ['gpu = "a100-sxm4-40gb"' in group for group in text.split("[[node_groups]]")[1:]] == shared
    assert ("links.inter_node.kind" not in asked) == any(shared)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "text must be that of sinfo"),
        ("", "text must be that of sinfo"),
        ("PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\nmain* up infinite 2 idle n[1-2]\n", "column GRES must be"),
        (SINFO.replace("001-004", "1-99999999999"), "names must be at most 100,000"),
        (SINFO.replace("gpu[001-004]", "gpu[1-999]" + "x[1-999]" * 9), "must be at most 100,000"),
        (SINFO.replace("001-004", "a-b"), "numbers in brackets must be as in"),
        ('{"nodes": 3}', "document must be as sinfo --json prints it"),
        ('{"sinfo": [{}]}', "document must be as sinfo --json prints it"),
        ('{"plans": []}', "text must be that of sinfo"),
        ("{", "text must be JSON"),
    ],
)
def test_a_text_that_says_nothing_of_nodes_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputFileError, match=words):
        read_reports({"a.txt": text})


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("NODELIST GRES\nn[1-4] gpu:a100:4\n", "4 x 4 a100"),
        ("HOSTNAMES GRES CPUS\nn1 gpu:a100:4 64\nn2 gpu:a100:4 64\n", "2 x 4 a100"),
        ("AVAIL|GRES|NODES|NODELIST\nup|gpu:a100:4|4|n[1-4]\n", "4 x 4 a100"),
        ("PARTITION AVAIL CPUS(A/I/O/T) GRES NODELIST\ngpu up 0/64/0/64 gpu:a100:4 n1\n", "1 x 4 a100"),
        ("NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n", "2 x 4 a100"),
        ("\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n", "2 GPUs of a node"),
        ("hello", ""),
        ('name = "mine"\nnodes = ', ""),
    ],
)
def test_what_a_text_says_of_nodes_whatever_its_columns(text: str, known: str) -> None:
    assert known_of(text, "a.txt") == known


@pytest.mark.parametrize("columns", ["PARTITION AVAIL NODES NODELIST", "NODELIST NODES STATE", "PARTITION NODES GRES"])
def test_a_table_without_a_column_that_is_needed_says_how_to_print_it(columns: str) -> None:
    with pytest.raises(InputFileError, match=r"print it by sinfo .* for 'planner show clusters --detect --from'"):
        known_of(f"{columns}\n{'n1 ' * len(columns.split())}\n", "a.txt")
