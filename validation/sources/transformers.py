"""Transformers: vTrain on A100, BigScience on V100, NeuSight's end-to-end times."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, grouped, memory_run, name_of, settled

__all__ = ["BIGSCIENCE", "NEUSIGHT", "VTRAIN_MULTI", "VTRAIN_SINGLE"]

VOCABULARY = 50257


def _gpt(layers: object, hidden: object, heads: object, sequence: object) -> str:
    return f"gpt:layers={layers},hidden={hidden},heads={heads},sequence={sequence},vocabulary={VOCABULARY}"


VTRAIN_NOTES = "vocabulary of 50257 and 80 GB assumed; gradients sent at the end in one message"
COMPOSED = (
    "composed by a formula from per-layer times of unstated origin, not measured row by row; times of a cell "
    "(hidden, tensor_parallel, sub_batch) repeat in all its rows"
)


def _vtrain(source: str, rows: Sequence[Cells], note: str) -> Converted:
    for row in rows:
        shape = f"h{row['hidden']}-l{row['layers']}"
        plan = f"t{row['tp']}-d{row['dp']}-p{row['pp']}-m{row['micro_batch']}"
        yield Run(
            id=name_of(source, shape, f"{row['gpus']}gpu", f"b{row['global_batch']}", plan), source=source,
            network=_gpt(row["layers"], row["hidden"], row["heads"], row["seq"]),
            cluster="a100-80gb-800gbps", nodes=int(row["nodes"]), gpus_per_node=int(row["gpus_per_node"]),
            mini_batch=int(row["global_batch"]), sub_batch=int(row["micro_batch"]), precision="fp16",
            data_parallel=int(row["dp"]), tensor_parallel=int(row["tp"]), pipeline_parallel=int(row["pp"]),
            recompute="full", optimizer="adam", framework="megatron-deepspeed", metric="iteration_s",
            value=digits(float(row["iter_ms"]) / 1e3), strategy="no-overlap", notes=note,
        )  # fmt: skip


VTRAIN_MULTI = Source(
    "vtrain-multi",
    {"vtrain_megatron_a100_multi.csv": "VIA-Research/vTrain, data/ground_truth_multi.csv"},
    lambda rows: _vtrain("vtrain-multi", rows, VTRAIN_NOTES),
    lambda runs: grouped(settled(runs)),
)
VTRAIN_SINGLE = Source(
    "vtrain-single",
    {"vtrain_megatron_a100_single.csv": "VIA-Research/vTrain, data/ground_truth_single.csv"},
    lambda rows: _vtrain("vtrain-single", rows, f"{COMPOSED}; {VTRAIN_NOTES}"),
    grouped,
)

HEADS = {"gpt2": 32, "tr3m": 16}
"""Attention heads, as in the scripts beside the tables."""
WITHOUT_RECOMPUTE = range(44, 49)
"""Lines of tr3m-1B3.md under "after removing --checkpoint-activations"."""
OFFLOADED = (*range(400, 449), *range(466, 469), *range(483, 488))
"""Lines of gpt2.md whose tables say that optimizer state or parameters are kept in the memory of the host."""
MEGATRON_ALONE = (186, 253)
"""Lines of gpt2.md among those of DeepSpeed whose column DS says N."""
ZERO_1 = range(213, 252)
"""Lines of gpt2.md under "zero_stage:1 + reduce_bucket_size", its experiments 1 and 2."""
PARTITIONED = range(213, 216)
"""Lines of gpt2.md with --partition-activations: each of the tensor-parallel GPUs keeps a part of the checkpoints."""
CHECKPOINTS_ON_HOST = range(371, 392)
"""Lines of gpt2.md whose script says --checkpoint-in-cpu."""
IN_USE = "in use of the device, in whole GiB; how it was read is not stated"
OTHER_SUB_BATCH = {181: 6, 182: 8}
"""Lines of gpt2.md -> sub-batch: 4 is printed there, but not what 256 sub-batches of the mini-batch and the rise of
memory from 26 to 29 and 32 GB say."""
BIGSCIENCE_FRAMEWORKS = {
    "Megatron": ("megatron-lm", "", 0),
    "Megatron + Deepspeed 3D (new branch)": ("megatron-deepspeed", "3D, new branch", 0),
    "Megatron + Deepspeed 3D (old branch)": ("megatron-deepspeed", "3D, old branch", 0),
    "Megatron + Deepspeed ZeRO (old branch)": ("megatron-deepspeed", "ZeRO, old branch", 3),
    "HF + Deepspeed Zero 3 + Full Offload": ("transformers-deepspeed", "ZeRO 3", 3),
    "Megatron-DeepSpeed": ("megatron-deepspeed", "", 1),
}
"""Framework, version, sharding."""


def _bigscience(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        reason = _why_not(row)
        if reason:
            yield Dropped(reason)
            continue
        run, used = _bigscience_run(row), re.search(r"(\d+) ?GB(?! node)", row["notes"])
        yield run
        if used and run.value is not None:
            yield memory_run(run, float(used[1]) * 2**30, IN_USE)


def _why_not(row: Cells) -> str:
    document, line = row["source"], int(row["line"])
    if "tr8-104B" in document:
        return "the source calls the table partly invalid: its feed-forward size was set wrong"
    if not row["hidden"] or not row["layers"]:
        return "the size of the network is not published"
    if "gpt2.md" in document and line in OFFLOADED:
        return "optimizer state or parameters in host memory, with checkpoints there too"
    degrees = [int(float(row[name] or 1)) for name in ("tp", "pp", "dp")]
    if row["dp"] and degrees[0] * degrees[1] * degrees[2] != int(row["gpus"]):
        return "degrees that do not multiply to the GPUs"
    return ""


def _bigscience_run(row: Cells) -> Run:
    document, line = "tr3m" if "tr3m" in row["source"] else "gpt2", int(row["line"])
    framework, version, sharding = _framework(row["framework"], document, line)
    memory = "16gb" if row["gpu"].endswith("16GB") else "32gb"
    tensor, pipeline = (int(float(row[name] or 1)) for name in ("tp", "pp"))
    failed = row["status"] == "OOM"
    recompute = "none" if document == "tr3m" and line in WITHOUT_RECOMPUTE else "full"
    printed = _whole(row["micro_batch"])
    return Run(
        id=name_of("bigscience", document, f"line{line}"), source="bigscience-v100",
        network=_gpt(_whole(row["layers"]), _whole(row["hidden"]), HEADS[document], row["seq"]),
        cluster=f"jean-zay-v100-{memory}", nodes=int(row["nodes"]),
        gpus_per_node=int(row["gpus_per_node"]), mini_batch=int(row["global_batch"]),
        sub_batch=OTHER_SUB_BATCH.get(line, printed) if document == "gpt2" else printed, precision="fp16",
        tensor_parallel=tensor, pipeline_parallel=pipeline, recompute=recompute, sharding=sharding, optimizer="adam",
        framework=framework, framework_version=version, metric="iteration_s",
        value=None if failed else float(row["value"]), status="out_of_memory" if failed else "ok",
        notes="; ".join(filter(None, _bigscience_notes(document, line))),
        offload="activations" if document == "gpt2" and line in CHECKPOINTS_ON_HOST else "none",
    )  # fmt: skip


def _framework(said: str, document: str, line: int) -> tuple[str, str, int]:
    """Return framework, version and sharding."""
    framework, version, sharding = BIGSCIENCE_FRAMEWORKS[said]
    if document == "gpt2" and line in MEGATRON_ALONE:
        return BIGSCIENCE_FRAMEWORKS["Megatron"]
    return framework, version, 1 if document == "gpt2" and line in ZERO_1 else sharding


def _bigscience_notes(document: str, line: int) -> Sequence[str]:
    if document == "tr3m":
        return []
    return [
        "times differ by 40 % between days, says the source (shared network)",
        "sub-batch printed as 4" if line in OTHER_SUB_BATCH else "",
        "checkpoints partitioned over the tensor-parallel GPUs" if line in PARTITIONED else "",
        "checkpoints in host memory" if line in CHECKPOINTS_ON_HOST else "",
    ]


def _whole(cell: str) -> int:
    return int(float(cell))


BIGSCIENCE = Source(
    "bigscience-v100",
    {"bigscience_v100_sweeps.csv": "bigscience-workshop/bigscience, experiments/{gpt2,tr3m-1B3,tr8-104B}.md"},
    _bigscience,
    lambda runs: grouped(settled(runs)),
)

NEUSIGHT_NETWORKS = {
    "bert_large": "bert-large:head=tokens,sequence={}",
    "gpt2_large": _gpt(36, 1280, 20, "{}"),
    "gpt3_27": _gpt(32, 2560, 32, "{}"),
    "gpt3_xl": _gpt(24, 3072, 24, "{}"),
    "opt_13": "opt-1.3b:sequence={}",
    "switchxl4": "switch-xl-4:sequence={}",
}
NEUSIGHT_ASSUMED = {
    "gpt3_27": "; 32 heads assumed",
    "gpt3_xl": "; 24 heads of 128 features assumed",
}
NEUSIGHT_CLUSTERS = {
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb-box", "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb-box",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb-box",
}  # fmt: skip


def _neusight(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if row["mode"] != "train":
            yield Dropped("inference: runs are of training")
        elif row["phase"] != "e2e":
            yield Dropped("forward or backward alone: their sum is the run")
        elif row["gpu"] not in NEUSIGHT_CLUSTERS:
            yield Dropped("a GPU that the planner does not know")
        else:
            yield _neusight_run(row)


def _neusight_run(row: Cells) -> Run:
    cluster = NEUSIGHT_CLUSTERS[row["gpu"]]
    fused = "torch.compile" if "fusion" in row["notes"] else ""
    where = (cluster.removesuffix("-box"), row["network"], f"b{row['global_batch']}")
    heads = NEUSIGHT_ASSUMED.get(row["network"], "")
    split = row["framework"] == "Megatron-LM"
    return Run(
        id=name_of("neusight", *where, row["parallel"], fused),
        source="neusight-e2e", network=NEUSIGHT_NETWORKS[row["network"]].format(row["seq"]),
        cluster=cluster, nodes=1, gpus_per_node=int(row["gpus_per_node"]),
        mini_batch=int(row["global_batch"]), accumulation_steps=1, optimizer="none",
        tensor_parallel=4 if row["parallel"] == "tp4" else 1, pipeline_parallel=4 if row["parallel"] == "pp4_1" else 1,
        framework="megatron-lm" if split else f"pytorch{'-compile' if fused else ''}",
        framework_version="" if split else "2.1", metric="iteration_s",
        value=digits(float(row["value"]) / 1e3), notes=f"forward and backward, TF32 off{heads}",
    )  # fmt: skip


NEUSIGHT = Source(
    "neusight-e2e",
    {"neusight_e2e.csv": "sitar-lab/NeuSight, scripts/asplos/label"},
    _neusight,
)
