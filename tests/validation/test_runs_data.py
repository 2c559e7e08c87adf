"""The measured runs of the checkout: readable, sourced, and what their sources print."""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.domain.axes import AXES
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import label_of
from planner.domain.network import layer_shapes
from planner.domain.runs import Run, Runs
from planner.errors import ParameterError, UnknownNameError
from planner.formats.runs import read_runs, write_runs
from planner.workload.lawful import check_lawful
from validation.sources.megatron import flop_of_update

FOLDER = Path(__file__).parents[2] / "validation"
FILES = sorted(FOLDER.glob("*.csv"))
NAMES = {
    "tensorflow-2017", "mxnet", "pollux-t4", "elasticflow", "cnn-benchmarks", "convnet-benchmarks", "neusight-e2e",
    "paddle-perf", "pytorch-gpu-benchmark", "timm-rtx3090", "vtrain-multi", "vtrain-single", "bigscience-v100", "seeds",
    "fms-fsdp", "megatron-published", "nanotron", "primus", "torchtitan", "torchtitan-fp8", "superbench",
    "lambda-v1", "lambda-v2", "u39kun", "paddle-resnet50", "mxnet-large", "h200-pytorch", "h100-pytorch", "sailor",
    "torchgpipe",
}  # fmt: skip


@cache
def runs_of(name: str) -> Runs:
    return read_runs(FOLDER / f"{name}.csv")


@cache
def by_id(name: str) -> Mapping[str, Run]:
    return {run.id: run for run in runs_of(name).rows}


def test_every_source_has_its_file() -> None:
    assert {path.stem for path in FILES} >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_row_is_refused_and_the_text_is_the_writers(name: str) -> None:
    runs = runs_of(name)
    assert runs.refused == ()
    assert (FOLDER / f"{name}.csv").read_text(encoding="utf-8") == write_runs(runs.rows)


def test_networks_are_known_but_for_a_few_of_other_families() -> None:
    unknown = set()
    for text in {run.network for name in NAMES for run in runs_of(name).rows}:
        try:
            layer_shapes(catalog.find_network(text))
        except UnknownNameError:
            unknown.add(text)
    assert unknown == {"deepspeech2", "neumf", "resnet50-cifar10", "switch-xl-4:sequence=512"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_plans_that_ran_are_lawful_in_their_program(name: str) -> None:
    refused: dict[str, str] = {}
    for run in runs_of(name).rows[:: 1 + len(runs_of(name).rows) // 100]:
        if not run.is_replicated:
            label = label_of(run.framework, run.framework_version, ())
            values: dict[str, Any] = {axis.name: getattr(run, axis.name, axis.default) for axis in AXES}
            plan = Configuration(**values)
            network, framework = catalog.find_network(run.network), catalog.find_framework(label)
            try:
                check_lawful(network, framework, Configurations.of([plan]))
            except ParameterError as error:
                refused[run.id] = str(error)
    assert not refused


@pytest.mark.parametrize("name", sorted(NAMES))
def test_runs_fit_on_their_clusters(name: str) -> None:
    clusters = {text: catalog.find_cluster(text) for text in {run.cluster for run in runs_of(name).rows}}
    for run in runs_of(name).rows:
        cluster = clusters[run.cluster]
        assert run.nodes <= cluster.nodes, run.id
        assert run.gpus_per_node is not None, run.id
        assert run.gpus_per_node <= cluster.node.gpus, run.id
        assert run.precision in cluster.node.accelerator.peak_flop_per_s, run.id
        assert run.nodes == 1 or cluster.inter_node is not None, run.id
        assert run.gpus_per_node == 1 or cluster.intra_node is not None, run.id


def test_every_source_is_described() -> None:
    described = tomllib.loads((FOLDER / "SOURCES.toml").read_text(encoding="utf-8"))
    assert {run.source for name in NAMES for run in runs_of(name).rows} == set(described)
    keys = {"title", "authors", "repository", "commit", "licence", "trust", "assumed", "remarks"}
    for source, entry in described.items():
        assert set(entry) - {"fitted", "locked"} == keys, source
        assert all(entry[key] for key in keys), source
        assert entry.get("fitted", False) is False, source  # stated where no fit takes a source
        assert "locked" not in entry or (entry["locked"], entry["fitted"]) == (True, False), source


# Typed in from the published pages, not from the tables that the script reads.
PRINTED = [
    ("tensorflow-2017", "tf-dgx1-p100-resnet-50-n1-g8-b64-synthetic", 1734.0, 512),
    ("tensorflow-2017", "tf-dgx1-p100-alexnet-n1-g4-b512-real", 7105.0, 2048),
    ("tensorflow-2017", "tf-gce-k80-vgg16-n1-g8-b32-synthetic", 234.0, 256),
    ("tensorflow-2017", "tf-ec2-p2-8xlarge-distributed-inceptionv3-n8-g8-b64-synthetic", 1783.0, 4096),
    ("mxnet", "mxnet-ec2-p3-2xlarge-resnet-50-n1-g1-b64", 343.19, 64),
    ("mxnet", "mxnet-ec2-p2-16xlarge-resnet-152-n16-g16-b32", 4630.42, 8192),
    ("convnet-benchmarks", "convnet-torch7-alexnet-owt", 0.081, 128),
    ("convnet-benchmarks", "convnet-tensorflow-googlenet", 0.445, 128),
    ("bigscience-v100", "bigscience-tr3m-line24", 28.0, 512),
    ("bigscience-v100", "bigscience-gpt2-line73", 0.661, 4),
    ("megatron-published", "megatron-2022-gpt3-175b-selective", 13.75, 64),
    ("megatron-published", "megatron-2022-megatron-1t-full", 94.42, 512),
    ("superbench", "superbench-resnet50-fp16", 0.200086, 1536),
    ("seeds", "sprint-baseline-epoch-s", 1779.0, 512),
    ("seeds", "sprint-baseline-mini-batch-mean", 165.1, 512),
    ("seeds", "dell-sxm2-resnet50", 2940.0, 1024),
]


@pytest.mark.parametrize(("name", "run", "value", "mini_batch"), PRINTED, ids=str)
def test_values_are_those_printed(name: str, run: str, value: float, mini_batch: int) -> None:
    assert (by_id(name)[run].value, by_id(name)[run].mini_batch) == (value, mini_batch)


@pytest.mark.parametrize(
    ("name", "run", "tokens_per_s", "sequence"),
    [
        ("torchtitan", "torchtitan-8b-h100-g128-8192-bf16-compile", 6514.0, 8192),
        ("torchtitan", "torchtitan-70b-h100-g256-8192-bf16-compile-async-tensor", 652.4, 8192),
        ("fms-fsdp", "fms-fsdp-70b-a100", 410.0, 4096),
        ("nanotron", "nanotron-t16-sequence", 6159.3, 4096),
        ("primus", "primus-1f1b", 10057.0, 4096),
    ],
)
def test_rates_are_those_printed_in_tokens_of_a_gpu(name: str, run: str, tokens_per_s: float, sequence: int) -> None:
    one = by_id(name)[run]
    assert one.value == pytest.approx(tokens_per_s * (one.gpus or 0) / sequence, rel=1e-6)


@pytest.mark.parametrize(
    ("network", "printed"),
    [("megatron-22b", 0.415), ("gpt3-175b", 0.514), ("turing-530b", 0.560), ("megatron-1t", 0.563)],
)
def test_model_flop_of_megatron_are_those_of_the_printed_utilisation(network: str, printed: float) -> None:
    """Korthikanti et al. print the share of 312 TFLOP/s that a run with selective recomputation reaches."""
    run = by_id("megatron-published")[f"megatron-2022-{network}-selective"]
    of = arguments(run)
    sizes = {"layers": of["layers"], "hidden": of["hidden"], "sequence": 2048, "vocabulary": 51200}
    flop = flop_of_update(run.mini_batch or 0, recomputed=False, **sizes)
    assert flop / ((run.value or 0) * (run.gpus or 0) * 312e12) == pytest.approx(printed, rel=0.005)


def arguments(run: Run) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in run.network.partition(":")[2].split(","))
    return {key: int(value) for key, _, value in pairs if value.isdigit()}


@pytest.mark.parametrize(
    ("name", "run", "tflop_per_s", "within"),
    [("nanotron", "nanotron-t2-sequence", 363.66, 1e-5), ("primus", "primus-1f1b", 235.7, 1e-3)],
)
def test_inferred_sizes_have_the_printed_flop(name: str, run: str, tflop_per_s: float, within: float) -> None:
    """Both print TFLOP/s of a GPU too: six FLOP a weight of products and token, and attention as a whole square."""
    one = by_id(name)[run]
    of = arguments(one)
    weights = of["layers"] * (4 * of["hidden"] ** 2 + 3 * of["hidden"] * of["ffn"]) + of["vocabulary"] * of["hidden"]
    of_a_sample = of["sequence"] * (6 * weights + 12 * of["layers"] * of["hidden"] * of["sequence"])
    assert of_a_sample * (one.value or 0) / (one.gpus or 0) == pytest.approx(tflop_per_s * 1e12, rel=within)


def test_fp8_and_context_stand_apart() -> None:
    assert {run.precision for run in runs_of("torchtitan").rows} == {"bf16"}
    assert {run.precision for run in runs_of("torchtitan-fp8").rows} == {"fp8"}


def test_single_passes_have_no_update() -> None:
    for name in ("cnn-benchmarks", "convnet-benchmarks", "neusight-e2e"):
        assert {run.optimizer for run in runs_of(name).rows} == {"none"}


def test_least_pass_stands_where_outliers_spoil_the_mean() -> None:
    assert by_id("cnn-benchmarks")["cnn-titan-x-maxwell-5105-resnet-200"].value == pytest.approx(0.464, abs=5e-4)


def test_stride_of_resnet_is_that_of_the_framework() -> None:
    networks = {run.network for run in runs_of("tensorflow-2017").rows if run.network.startswith("resnet")}
    assert networks == {"resnet50:stride=1x1", "resnet152:stride=1x1"}
    for name in ("mxnet", "cnn-benchmarks"):
        assert not any("stride" in run.network for run in runs_of(name).rows)


def test_out_of_memory_rows_have_no_value_and_lie_beside_plans_that_fit() -> None:
    failed = [run for run in runs_of("bigscience-v100").rows if run.status == "out_of_memory"]
    assert len(failed) == 4
    assert all(run.value is None for run in failed)
    fits = by_id("bigscience-v100")["bigscience-tr3m-line97"]
    fails = by_id("bigscience-v100")["bigscience-tr3m-line98"]
    assert (fits.sub_batch, fits.status, fails.sub_batch, fails.status) == (4, "ok", 8, "out_of_memory")


def test_composed_rows_say_so() -> None:
    assert all(run.notes.startswith("composed by a formula") for run in runs_of("vtrain-single").rows)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_groups_hold_rivals_for_equal_work(name: str) -> None:
    members: dict[str, list[Run]] = {}
    for run in runs_of(name).rows:
        if run.group:
            members.setdefault(run.group, []).append(run)
    for group, rivals in members.items():
        assert sum(run.status == "ok" for run in rivals) > 1, group
        assert len({(run.network, run.cluster, run.gpus, run.mini_batch, run.framework) for run in rivals}) == 1, group
        plans = {replace(run, id="x", line=0, value=None, notes="") for run in rivals}
        assert len(plans) == len(rivals), group


def test_uneven_placements_add_up() -> None:
    pollux = runs_of("pollux-t4").rows
    uneven = [run for run in pollux if run.is_uneven]
    assert Counter(run.is_uneven for run in pollux)[True] > 1000
    assert all(sum(run.placement) == run.data_parallel and len(run.placement) == run.nodes for run in uneven)
    assert by_id("pollux-t4")["pollux-resnet-50-1324-b81"].placement == (1, 3, 2, 4)


def test_no_file_is_a_published_table() -> None:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in FILES]
    assert len(set(digests)) == len(digests)
    for path in FILES:
        assert path.read_text(encoding="utf-8").startswith("# planner/runs 1\nid,source,network,cluster,")
