"""Suites of 2021 to 2026: Primus' pipeline schedules, nanotron's tensor-parallel degrees, SuperBench on one node.

All three stand in one published table. What it leaves open follows from the rates it prints: tokens/s and TFLOP/s of
one row give FLOP a token, which tell sizes of a network to a thousandth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, llama, memory_run, name_of

__all__ = ["NANOTRON", "PRIMUS", "SUPERBENCH"]

TABLE = "training_modern_misc.csv"
OTHER = "a row of another source in the same table"

PRIMUS_NETWORK = llama((16, 4096, 32, 32, 11008), 4096, 32000)
"""Of the 32 layers 16: TFLOP/s over tokens/s are 23.44 GFLOP a token in all six rows, those of 16 layers at 4,096
positions to 0.1 %."""
SUB_BATCHES = 32
"""As in the configuration of Primus' own comparison of schedules, and as 1F1B and zero bubble together say:
(m + 7) / (m + 7/3) = 1.135."""
SCHEDULES = {"1f1b": ("1f1b", 1), "1f1b-interleaved(vpp2)": ("interleaved", 2), "zbb": ("zero-bubble", 1)}
"""Name -> schedule and virtual stages. That zbb has none is taken from the list of algorithms; its row prints two, with
as much memory as 1F1B."""


def _primus(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        name = row["schedule"].partition(" ")[0]
        if "Primus" not in row["source"]:
            yield Dropped(OTHER)
        elif not row["network"].startswith("Llama"):
            yield Dropped("94 layers on four stages, and a batch, that are not stated")
        elif name not in SCHEDULES:
            yield Dropped("a schedule that no run says: those in the shape of a V")
        else:
            schedule, virtual = SCHEDULES[name]
            rate = float(row["value"])
            memory = re.search(r"peak memory ([\d.]+) GB", row["notes"])
            run = Run(
                id=name_of("primus", name), source="primus", network=PRIMUS_NETWORK,
                cluster="mi300x-box", nodes=1, gpus_per_node=8, mini_batch=SUB_BATCHES, sub_batch=1,
                precision="bf16", pipeline_parallel=8, data_parallel=1, virtual_stages=virtual, schedule=schedule,
                optimizer="adam", framework="megatron-lm", framework_version="Primus", metric="samples_per_s",
                value=digits(rate * 8 / 4096), group="primus-schedules",
                notes=f"{rate:g} tokens/s of a GPU; layers and sub-batches inferred",
            )  # fmt: skip
            yield run
            if memory:
                yield memory_run(run, float(memory[1]) * 2**30, "in use of the device, as Primus logs it")


PRIMUS = Source(
    "primus", {TABLE: "AMD-AGI/Primus, docs_deprecated/tech_blogs/primus_pipeline/primus_pipeline.md"}, _primus
)

NANOTRON_NETWORK = llama((28, 3072, 32, 32, 8192), 4096, 131072) + ",tied=true"
"""The 3B of scripts/scaling_benchmarks.py; 363.66 TFLOP/s at 14,167.25 tokens/s are its FLOP a token to 3e-6."""
SUB_BATCHES_OF_SCRIPT = {"14167.25": 3, "13460.16": 9, "10888.53": 18, "6159.3": 40, "3609.73": 90}
"""Tokens/s of a GPU -> sub-batch, as the script says beside the rate; the figure says 4, 10, 20, 40 and 100."""


def _nanotron(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if "nanotron" not in row["framework"]:
            yield Dropped(OTHER)
            continue
        split = "sequence" in row["schedule"]
        gpus = int(row["tensor_parallel"])
        yield Run(
            id=name_of("nanotron", f"t{gpus}", "sequence" if split else ""), source="nanotron",
            network=NANOTRON_NETWORK, cluster="ec2-p5-48xlarge", nodes=max(1, gpus // 8),
            gpus_per_node=min(8, gpus),
            sub_batch=SUB_BATCHES_OF_SCRIPT[row["value"]] if split else int(row["batch_per_gpu"]),
            accumulation_steps=1, precision="bf16", tensor_parallel=gpus, sequence_parallel="on" if split else "off",
            data_parallel=1, optimizer="adam", framework="nanotron", metric="samples_per_s",
            value=digits(float(row["value"]) * gpus / 4096),
            notes=f"{row['value']} tokens/s of a GPU",
        )  # fmt: skip


NANOTRON = Source(
    "nanotron",
    {TABLE: "nanotron/ultrascale-playbook, src/fragments, and huggingface/nanotron, scripts/scaling_benchmarks.py"},
    _nanotron,
)

SUPERBENCH_NETWORKS = {
    "bert-base": ("bert-base:head=pooler,sequence=224", 32), "bert-large": ("bert-large:head=pooler,sequence=224", 32),
    "gpt2-large": ("gpt:layers=36,hidden=1280,heads=20,sequence=224,vocabulary=50257,head=labels", 8),
    "resnet50": ("resnet50", 192), "resnet101": ("resnet101", 192), "resnet152": ("resnet152", 192),
    "vgg11": ("vgg11", 32), "vgg13": ("vgg13", 32), "vgg16": ("vgg16", 32), "vgg19": ("vgg19", 32),
}  # fmt: skip
"""Network, and sub-batch as in superbench/config/azure_ndv4.yaml; step times rates give the same within 1 %."""
CLASSIFIERS = ("resnet", "vgg")
"""Names of networks that SGD updates, without momentum; AdamW the others."""


def _superbench(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        name = row["network"]
        if "superbenchmark" not in row["source"]:
            yield Dropped(OTHER)
        elif row["metric"] != "time_ms" or not row["notes"].startswith("sb-validation-01"):
            yield Dropped("the rate of the same step, or the same figures under the name of another host")
        elif name not in SUPERBENCH_NETWORKS:
            yield Dropped("a network that the zoo does not know")
        else:
            network, batch = SUPERBENCH_NETWORKS[name]
            precision = "fp16" if row["precision"] == "fp16" else "tf32"
            yield Run(
                id=name_of("superbench", name, precision), source="superbench", network=network,
                cluster="azure-ndv4", nodes=1, gpus_per_node=8, sub_batch=batch, accumulation_steps=1,
                precision=precision, optimizer="sgd" if name.startswith(CLASSIFIERS) else "adam", framework="pytorch",
                framework_version="1.x", strategy="bucketed", metric="iteration_s",
                value=digits(float(row["value"]) / 1e3),
                notes="weights in fp16 too" if precision == "fp16" else "",
            )  # fmt: skip


SUPERBENCH = Source("superbench", {TABLE: "microsoft/superbenchmark, tests/analyzer/test_results.jsonl"}, _superbench)
