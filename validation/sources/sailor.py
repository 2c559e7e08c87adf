"""Sailor on Clariden: memory of pipelines and tensor-parallel plans on nodes of four GH200."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import MEMORY_METRIC, Run
from validation.sources.rows import Cells, Converted, Dropped, Source, name_of

__all__ = ["SAILOR"]

NETWORKS = {
    "GPT-NEO": "gpt:layers=32,hidden=2560,heads=32,sequence=2048,vocabulary=128256",
    "OPT-350": "gpt:layers=24,hidden=1024,heads=16,sequence=2048,vocabulary=50272",
}
LAYERS = {"GPT-NEO": 34, "OPT-350": 26}
"""With embedding and head."""
GPUS_OF_A_NODE = 4


def _sailor(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        _, network, *place = row["file"].removesuffix(".json").replace("plan_config_", "").split("/")
        replicas, stages = int(row["data_parallel"].partition("/")[0]), int(row["stages"])
        sub_batch = int(row["micro_batch"])
        layers = sum(map(int, row["layers_per_stage"].split("/")))
        if layers != LAYERS[network]:
            yield Dropped("as many layers as the other network has")
            continue
        yield Run(
            id=name_of("sailor", network, place[-1], "memory"), source="sailor", network=NETWORKS[network],
            cluster="sailor-clariden", nodes=int(row["gpus"]) // GPUS_OF_A_NODE,
            gpus_per_node=GPUS_OF_A_NODE, mini_batch=int(row["global_batch"]), sub_batch=sub_batch,
            precision="fp16", data_parallel=replicas, tensor_parallel=int(row["tensor_parallel"]),
            pipeline_parallel=stages, optimizer="adam", framework="megatron-deepspeed", metric=MEMORY_METRIC,
            value=float(row["peak_bytes"]),
            notes="in use of the device, whole MiB as nvidia-smi prints; layers a stage with embedding and head "
            f"{row['layers_per_stage']}, here as even as they go; precision inferred",
        )  # fmt: skip


SAILOR = Source(
    "sailor",
    {"sailor_clariden_memory.csv": "eth-easl/sailor, sailor/Planner/simulations/validation/clariden"},
    _sailor,
)
