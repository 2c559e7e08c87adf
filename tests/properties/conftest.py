"""Random problems and their lawful plans, for properties that hold of every network, cluster and framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, reject, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.cli.request import allowed_request, gather, resolve
from planner.domain.arrays import IntArray
from planner.domain.axes import AXES, MODES
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configurations, splits
from planner.domain.request import Problem, SpaceRequest
from planner.sources.sources import Sources, candidate_precisions
from planner.workload.lawful import is_lawful

SMALL = "gpt:layers=4,hidden=256,heads=8,sequence=128,vocabulary=1000"
NETWORKS = (
    "alexnet", "googlenet", "inception-v3", "mobilenet-v2", "resnet50", "vgg16", "mlp", "yolov3", "vit-b16",
    SMALL, "bert", "gpt2", "gpt2-medium", "llama-7b", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "t5-small",
)  # fmt: skip
CLUSTERS = ("dgx-a100", "dgx-h100", "dgx1-v100", "ec2-g4dn-12xlarge", "selene", "tsubame-2.5", "tsubame-kfc")
FRAMEWORKS = (
    "pytorch", "pytorch:compile", "pytorch:graphs+channels-last", "pytorch:fused-attention", "pytorch:horovod", "fsdp",
    "deepspeed", "generic", "megatron-lm", "megatron-lm:flash-attention", "mxnet:fused-norm", "nanotron", "sprint",
    "tensorflow", "tensorflow:xla", "tensorflow:parameter-server", "torchtitan", "torchtitan:async-tensor",
    "hypar-flow",
)  # fmt: skip
OPTIMIZERS = ("none", "sgd", "sgd-momentum", "adam", "adam-8bit")
SPLIT = {
    "tensor_parallel": (1, 2, 4), "context_parallel": (1, 2), "expert_parallel": (1, 2), "pipeline_parallel": (1, 2, 4),
    "virtual_stages": (1, 2), "sharding": (0, 1, 2, 3), "recompute_every": (1, 2),
}  # fmt: skip
ROWS = 400
"""Random rows, of which the lawful ones are plans."""
OFF = 0.3
"""Part of the rows in which a split axis is drawn: in the others it has its default, so that many rows are lawful."""


def trials(few: int, many: int) -> settings:
    """Return settings of so many examples, or of ``many`` with ``--hypothesis-profile=long``; always the same ones."""
    return settings(
        max_examples=many if settings.get_current_profile_name() == "long" else few,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),  # a seed has nothing smaller
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@cache
def asked(*arguments: str) -> tuple[Problem, SpaceRequest]:
    """Return the problem and the request of ``suggest`` with arguments; ValueError where it is refused."""
    found: list[tuple[Problem, SpaceRequest]] = []

    def resolved(command: str, given: Mapping[str, Any]) -> None:
        values = gather(command, given)
        _, cases = resolve(values)
        found.extend((case.problem, allowed_request(case, values)) for case in cases)

    with redirect_stderr(StringIO()) as said:
        code = main(["suggest", *arguments], resolved)
    if code:
        raise ValueError(said.getvalue())
    return found[0]


Options = tuple[str, ...]


def problem_names(networks: Sequence[str] = NETWORKS) -> st.SearchStrategy[Options]:
    """Names of what a problem is made of, the simplest first: network, cluster, framework, optimizer."""
    return st.tuples(*map(st.sampled_from, (networks, CLUSTERS, FRAMEWORKS, OPTIMIZERS)))


def problem_of(names: Options, *more: str) -> Problem:
    """Return a problem by names of :func:`problem_names` and further options."""
    options = zip(("--network", "--cluster", "--framework", "--optimizer"), names, strict=True)
    try:
        return asked(*(text for one in options for text in one), "--target-batch", "64", *more)[0]
    except ValueError as error:
        event(str(error))
        reject()


def problem_and_plans(
    names: Options, seed: int, mode: str = "sync", *, most: int = 40, **fixed: int
) -> tuple[Problem, Configurations]:
    """Return a problem and lawful plans: random rows of all axes, those with the fewest off their defaults first.

    A problem that cannot be priced, or has no plan among the rows, is no example.
    """
    problem = problem_of(names)
    sources, random, cluster = Sources(problem), np.random.default_rng(seed), problem.cluster
    reasons = candidate_precisions(sources, allow_specified=False)
    precisions = tuple(name for name, why in reasons.items() if why is None)
    if not precisions or sources.why_not_mode(mode):
        reject()
    columns: dict[str, IntArray] = {
        "nodes": np.minimum(random.choice([1, 1, 2, 3, 4, 8, cluster.nodes], ROWS), cluster.nodes),
        "gpus_per_node": np.minimum(random.choice([1, 2, 3, cluster.node.gpus], ROWS), cluster.node.gpus),
        "sub_batch": random.choice([1, 2, 4, 7, 16, 64], ROWS),
        "accumulation_steps": random.choice([1, 1, 2, 4, 8], ROWS),
        "precision": np.full(ROWS, random.integers(len(precisions))),
        "mode": np.full(ROWS, MODES.index(mode)),
    }
    for axis in (one for one in AXES if one.splits):
        values = np.array(SPLIT.get(axis.name, range(len(axis.words))))
        columns[axis.name] = np.where(random.random(ROWS) < OFF, random.choice(values, ROWS), axis.code(axis.default))
    if mode == "async":
        columns |= {one.name: np.full(ROWS, one.code(one.default)) for one in AXES if one.only_sync}
    columns |= {name: np.full(ROWS, value) for name, value in fixed.items()}
    rows = lawful(problem, Configurations(**columns, precisions=precisions), most)
    if not rows.size:
        reject()
    return problem, rows


def lawful(problem: Problem, rows: Configurations, most: int) -> Configurations:
    """Return the first lawful plans of rows, those with the fewest axes off their defaults first."""
    holds = (rows.gpus % rows.replica_gpus == 0) & (rows.data_parallel > 0)
    framework = problem.settings.framework
    at = np.flatnonzero(holds)
    holds[at] &= ~splits(rows.take(at)) | is_lawful(problem.network, framework, rows.take(at))
    off = sum((getattr(rows, a.name) != rows.code(a, a.default or 1)).astype(np.int64) for a in AXES if a.splits)
    at = np.flatnonzero(holds)
    return rows.take(at[np.argsort(np.asarray(off)[at], kind="stable")][:: max(1, at.size // most)][:most])


def with_cluster(problem: Problem, **changes: Any) -> Problem:
    """Return the problem on a cluster with other values."""
    return replace(problem, cluster=replace(problem.cluster, **changes))


def with_memory(problem: Problem, factor: float) -> Problem:
    """Return the problem on devices with so many times the memory."""
    node = problem.cluster.node
    device = replace(node.accelerator, memory_bytes=factor * node.accelerator.memory_bytes)
    return with_cluster(problem, node=replace(node, accelerator=device))


def said(rows: Configurations, at: int) -> str:
    """Return a plan in words: what is not the default."""
    one = rows.one(at)
    return ", ".join(f"{a.name}={getattr(one, a.name)}" for a in AXES if getattr(one, a.name) != a.default)


def faster_machines(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """Yield the cluster with one thing that is better each, and what that is."""
    for name in ("intra_node", "inter_node", "host"):
        link = getattr(cluster, name)
        if link is None:
            continue
        yield f"{name} bandwidth", replace(cluster, **{name: replace(link, bytes_per_s=3 * link.bytes_per_s)})
        yield f"{name} latency", replace(cluster, **{name: replace(link, latency_s=link.latency_s / 3)})
        if name == "inter_node":
            yield "NICs", replace(cluster, inter_node=replace(link, nics_per_node=2 * link.nics_per_node))
    if cluster.storage is not None:
        faster = replace(cluster.storage, read_bytes_per_s=3 * cluster.storage.read_bytes_per_s)
        yield "storage", replace(cluster, storage=faster)
        yield "own storage", replace(cluster, storage=replace(cluster.storage, shared=False))
        yield "cache", replace(cluster, storage=replace(cluster.storage, cache_bytes=1e15))


@pytest.fixture(scope="module", autouse=True)
def _empty_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No ``planner.toml`` and no calibration of the user's own has a say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("place"))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
