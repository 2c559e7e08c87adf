"""LLaMA with sharded parameters: torchtitan on H100 and H200, and the tables of fms-fsdp on A100 and H100."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, llama, memory_run, name_of

__all__ = ["FMS_FSDP", "TORCHTITAN", "TORCHTITAN_FP8"]

LLAMA_3 = {
    "8B": (32, 4096, 32, 8, 14336), "70B": (80, 8192, 64, 8, 28672), "405B": (126, 16384, 128, 8, 53248),
}  # fmt: skip
VOCABULARY_3 = 128256
MEMORY_GIB = {
    "5762": 82.4, "6667": 77.0, "8532": 76.8, "3890": 83.9, "2540": 84.2, "1071": 84.0, "548": 84.5, "5605": 67.0,
    "6514": 62.0, "8380": 61.8, "829": 71.9, "876": 67.6, "100": 82.5, "128": 72.7, "76": 75.3, "47": 75.9,
    "31": 77.1, "16": 84.9, "10938": 47.96, "10753": 46.97,
}  # fmt: skip
"""Tokens/s of a GPU -> GiB of it reserved, the most of all GPUs, in the same row of the published tables."""
RESERVED = "reserved by PyTorch's allocator, the most of all GPUs, as torchtitan logs it"
SUB_BATCHES_OF_A_PIPELINE = 8
"""Of the runs with eight stages: the default of torchtitan at that time, as many as stages; the ratio of 1.28 between
the two schedules says so too, which is 1.30 of eight sub-batches and 1.18 of sixteen."""
PER_OPERATOR = "keeps what products and attention give, every second product left out, and computes the rest again"


def _of_precision(rows: Sequence[Cells], *, narrow: bool) -> Converted:
    for row in rows:
        if row["precision"].startswith("fp8") is not narrow:
            yield Dropped("rows in another precision, which stand in a file of their own")
        else:
            run, memory = _torchtitan(row), MEMORY_GIB.get(row["value"])
            yield run
            if memory:
                yield memory_run(run, memory * 2**30, RESERVED)


def _torchtitan(row: Cells) -> Run:
    notes, size = row["notes"], row["network"].rpartition("-")[2]
    tensor, pipeline, context = int(row["tp"] or 1), int(row["pp"] or 1), _said(r"CP (\d+)", notes) or 1
    gpus, local = int(row["gpus"]), int(row["batch_per_gpu"])
    degree = gpus // (tensor * pipeline * context)
    steps = SUB_BATCHES_OF_A_PIPELINE if pipeline > 1 else 1
    virtual = 2 if "Interleaved" in notes else 1
    switches, narrow = "+".join(_switches(notes)), row["precision"].startswith("fp8")
    hopper = "h200" if row["gpu"].startswith("H200") else "h100"
    plan = (f"c{context}" if context > 1 else "", "v2" if virtual > 1 else "")
    return Run(
        id=name_of("torchtitan", size, hopper, f"g{gpus}", row["seq"], row["precision"], switches, *plan),
        source=f"torchtitan{'-fp8' if narrow else ''}",
        network=llama(LLAMA_3[size], int(row["seq"]), VOCABULARY_3),
        cluster="grand-teton-h100-500w" if hopper == "h100" else "h200-trainy",
        nodes=int(row["nodes"]), gpus_per_node=8, mini_batch=degree * local, sub_batch=local // steps,
        precision="fp8" if narrow else "bf16", data_parallel=degree, tensor_parallel=tensor,
        sequence_parallel="on" if tensor > 1 else "off", context_parallel=context, pipeline_parallel=pipeline,
        virtual_stages=virtual, schedule="interleaved" if virtual > 1 else "1f1b", optimizer="adam",
        sharding=3 if pipeline == 1 else 2,  # stages keep weights gathered: reshard_after_forward=not pp_enabled
        recompute="full" if "full AC" in notes else "selective",
        framework=_framework(notes),
        framework_version="2024-12" if "202412" in row["source"] else "2025-06", metric="samples_per_s",
        value=digits(float(row["value"]) * gpus / int(row["seq"])), notes="; ".join(filter(None, _notes(row))),
    )  # fmt: skip


def _said(pattern: str, notes: str) -> int:
    found = re.search(pattern, notes)
    return int(found[1]) if found else 0


def _framework(notes: str) -> str:
    """Return the framework of a row; asynchronous tensor parallelism needs torch.compile."""
    switches = set(_switches(notes))
    return "-".join(("torchtitan", "async-tensor" if "async-tensor" in switches else "-".join(switches))).strip("-")


def _switches(notes: str) -> Iterator[str]:
    if "compile" in notes:
        yield "compile"
    if re.search(r"async ?TP", notes, re.IGNORECASE):
        yield "async-tensor"


def _notes(row: Cells) -> Iterator[str]:
    yield f"{row['value']} tokens/s of a GPU"
    yield "" if "full AC" in row["notes"] else PER_OPERATOR
    yield f"fp8 scaled {row['precision'].partition(' ')[2] or 'by tensor'}" if row["precision"][:3] == "fp8" else ""
    yield "eight sub-batches of a pipeline assumed" if row["pp"] else ""


TABLE = {"torchtitan.csv": "pytorch/torchtitan, benchmarks/*.md"}
TORCHTITAN = Source("torchtitan", TABLE, lambda rows: _of_precision(rows, narrow=False))
TORCHTITAN_FP8 = Source("torchtitan-fp8", TABLE, lambda rows: _of_precision(rows, narrow=True))

LLAMA_2 = {
    "7b": (32, 4096, 32, 32, 11008), "13b": (40, 5120, 40, 40, 13824), "34b": (48, 8192, 64, 8, 22016),
    "70b": (80, 8192, 64, 8, 28672),
}  # fmt: skip
"""As in fms_fsdp/utils/config_utils.py."""
SEQUENCE = 4096


def _fms(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        size, gpu = row["network"].rpartition("-")[2], row["gpu"].partition("-")[0].lower()
        hybrid, kept = row["notes"].startswith("tokens/s PER GPU; HSDP"), "No AC" in row["notes"]
        gpus = int(row["nodes"]) * 8
        share = "" if kept else "whole blocks computed again, some of them, not stated how many: as few as fit"
        yield Run(
            id=name_of("fms-fsdp", size, gpu), source="fms-fsdp",
            network=llama(LLAMA_2[size], SEQUENCE, 32000), cluster=f"fms-{gpu}",
            nodes=int(row["nodes"]), gpus_per_node=8, sub_batch=int(row["batch_per_gpu"]),
            mini_batch=int(row["global_batch"]), accumulation_steps=1, precision="bf16", data_parallel=gpus,
            recompute="none" if kept else "per-stage", sharding=3,
            shard_group="node" if hybrid else "all", optimizer="adam", framework="fsdp-compile",
            metric="samples_per_s", value=digits(float(row["value"]) * gpus / SEQUENCE),
            notes="; ".join(filter(None, [f"{row['value']} tokens/s of a GPU", share])),
        )  # fmt: skip


FMS_FSDP = Source("fms-fsdp", {"fms_fsdp.csv": "foundation-model-stack/fms-fsdp, README.md"}, _fms)
