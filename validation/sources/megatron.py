"""Megatron-LM's own tables: April 2021 on A100, Korthikanti et al. 2022, and Megatron-Core 0.8 on H100.

Two of the tables print TFLOP/s of a GPU, from which the time of a step follows with the FLOP that they count: with
the forward pass twice in 2021 (everything but the output layer is recomputed), once in 2024, both with the whole
square of attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, name_of

__all__ = ["MEGATRON", "flop_of_update"]

HEADS = {
    2304: 24, 3072: 32, 4096: 32, 6144: 48, 8192: 64, 10240: 80, 12288: 96, 16384: 128, 20480: 128, 25600: 160,
}  # fmt: skip
"""Hidden size -> heads, from table 1 of Narayanan et al. 2021; the image of April 2021 has none."""
INTERLEAVED = ("gpt3-175B", "turing-530B")
"""Networks of Korthikanti et al. with three virtual stages, with full recomputation too (section 6)."""


def flop_of_update(
    batch: int, *, layers: int, hidden: int, sequence: int, vocabulary: int, recomputed: bool = False
) -> float:
    """Return FLOP of a gpt network as Megatron-LM's tables count them (Narayanan et al. 2021, section 5.1).

    72 B s L h^2 (1 + s / 6h + V / 12Lh), and with the layers' forward pass again 96 B s L h^2 (1 + s / 6h + V / 16Lh).
    """
    passes, of_logits = (96, 16) if recomputed else (72, 12)
    parts = 1 + sequence / (6 * hidden) + vocabulary / (of_logits * layers * hidden)
    return passes * batch * sequence * layers * hidden**2 * parts


def _megatron(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if "MFU table" in row["source"]:
            yield Dropped("the same runs as in the table of Korthikanti et al.")
        elif "Korthikanti" in row["source"]:
            yield _korthikanti(row)
        else:
            yield _rate(row)


def _gpt(row: Cells, heads: int, vocabulary: int, attention: str = "") -> str:
    sizes = f"layers={row['layers']},hidden={row['hidden']},heads={heads},sequence={row['seq']}"
    return f"gpt:{sizes},vocabulary={vocabulary}{attention}"


def _korthikanti(row: Cells) -> Run:
    full = row["notes"].startswith("full")
    return Run(
        id=name_of("megatron-2022", row["network"], "full" if full else "selective"), source="megatron-published",
        network=_gpt(row, int(row["heads"]), 51200), cluster="selene", nodes=int(row["nodes"]),
        gpus_per_node=8, mini_batch=int(row["global_batch"]), sub_batch=int(row["micro_batch"]), precision="fp16",
        tensor_parallel=int(row["tp"]), pipeline_parallel=int(row["pp"]), data_parallel=int(row["dp"]),
        sequence_parallel="off" if full else "on", virtual_stages=3 if row["network"] in INTERLEAVED else 1,
        schedule="interleaved" if row["network"] in INTERLEAVED else "1f1b", recompute="full" if full else "selective",
        optimizer="adam", framework="megatron-lm", framework_version="2022",
        metric="iteration_s", value=float(row["value"]),
        notes="attention in single kernels",
    )  # fmt: skip


def _rate(row: Cells) -> Run:
    """Return the run of a row that prints TFLOP/s of a GPU."""
    old = "Apr 2021" in row["source"]
    year, vocabulary = ("2021", 51200) if old else ("2024", 131072)
    layers, hidden, pipeline = int(row["layers"]), int(row["hidden"]), int(row["pp"])
    batch, degree = int(row["global_batch"]), int(row["dp"])
    flop = flop_of_update(
        batch, layers=layers, hidden=hidden, sequence=int(row["seq"]), vocabulary=vocabulary, recomputed=old
    )
    return Run(
        id=name_of(f"megatron-{year}", row["network"]), source="megatron-published",
        network=_gpt(row, HEADS[hidden] if old else int(row["heads"]), vocabulary, "" if old else ",attention=fused"),
        cluster="selene" if old else "h100-ndr-6144", nodes=int(row["nodes"]), gpus_per_node=8,
        mini_batch=batch, sub_batch=_sub_batch(batch // degree, pipeline) if old else 1,
        precision="fp16" if old else "bf16", tensor_parallel=int(row["tp"]), pipeline_parallel=pipeline,
        sequence_parallel="off" if old or int(row["tp"]) == 1 else "on", data_parallel=degree,
        virtual_stages=_virtual_stages(layers, pipeline), schedule="interleaved" if pipeline > 1 else "1f1b",
        recompute="full" if old else "none",
        sharding=0 if old else 1, optimizer="adam", framework="megatron-lm",
        framework_version=year, metric="iteration_s",
        value=digits(flop / (int(row["gpus"]) * float(row["value"]) * 1e12)),
        notes=f"printed: {row['value']} TFLOP/s a GPU; sub-batch and virtual stages assumed",
    )  # fmt: skip


def _virtual_stages(layers: int, pipeline: int) -> int:
    """Return the least number above 1 that divides the layers of a stage."""
    if pipeline == 1:
        return 1
    of_a_stage = layers // pipeline
    return next(count for count in range(2, of_a_stage + 1) if of_a_stage % count == 0)


def _sub_batch(samples: int, pipeline: int) -> int:
    """Return what is assumed of the samples of a replica: four alone, two in short pipelines, else one."""
    wanted = 4 if pipeline == 1 else 2 if pipeline <= 8 else 1
    return next(count for count in range(wanted, 0, -1) if samples % count == 0)


MEGATRON = Source(
    "megatron-published",
    {
        "megatron_published_tables.csv": "NVIDIA/Megatron-LM, images/cases_april2021.png and images/model_table.png, "
        "and Korthikanti et al. 2022, table 5"
    },
    _megatron,
)
