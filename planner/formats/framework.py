"""Framework files (TOML).

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from pathlib import Path

from planner.domain.axes import SCHEDULES
from planner.domain.framework import (
    FUSIONS,
    GRADIENT_TYPES,
    LOSSES,
    PARALLELISMS,
    REPEATED,
    STAGES,
    STRATEGIES,
    Framework,
    Strategy,
)
from planner.domain.ranks import RANK_ORDER
from planner.formats.fields import Field, ListOf, MapOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Number, Text, Whole

__all__ = ["FRAMEWORK", "read_framework"]

_STRATEGY = Table(
    (
        Field("prefetch", Flag(), "whether input is loaded during the step before", default=True),
        Field("overlap", Flag(), "whether gradients are sent as they become ready, not after them all", default=True),
        Field("first_bucket_MiB", Number("MiB"), "gradients sent first; 0: by layer", 0.0, "first_bucket_bytes"),
        Field("bucket_MiB", Number("MiB"), "gradients sent together later; 0: by layer", 0.0, "bucket_bytes"),
        Field("best_buckets", Flag(), "whether what is sent together is what is done first", default=False),
    ),
    Strategy,
    "what overlaps in a synchronous step",
)
FRAMEWORK = Kind(
    "framework",
    1,
    "toml",
    Table(
        (
            Field("name", Text(), "name to refer to it, in lower case; its overheads are looked up by it"),
            Field("aliases", ListOf(Text()), "other names, in lower case", ()),
            Field("input_gradient", Flag(), "whether the gradient of the network's input is computed", default=False),
            Field("gradient_type", Text(GRADIENT_TYPES), "what gradients are held and sent in", "precision"),
            Field("strategies", MapOf(_STRATEGY, choices=tuple(STRATEGIES)), "those it follows in its own way", {}),
            Field("can", ListOf(Text(PARALLELISMS)), "ways in which it splits networks", PARALLELISMS),
            Field("schedules", ListOf(Text(SCHEDULES)), "orders of a pipeline's passes that it has", SCHEDULES),
            Field("most_sharded", Whole(least=0, most=3), "the largest sharding that it has", 3),
            Field("most_sharded_in_pipeline", Whole(least=0, most=3), "the same beside a pipeline", 3),
            Field(
                "fuses",
                ListOf(Text(FUSIONS)),
                "what its kernels do in one: bias and activation, bias and sum, scale, mask and softmax",
                (),
            ),
            Field("scatters_boundary", Flag(), "whether tensor ranks send parts to the next stage", default=False),
            Field("stages", Text(STAGES), "what its pipeline's stages are", "modules"),
            Field("selective", Text(REPEATED), "what selective recompute makes again", "attention"),
            Field("overlaps_tensor", Flag(), "whether messages of tensor ranks run beside products", default=False),
            Field("gathers_ahead", Whole(least=0, most=1000), "units gathered ahead where weights are sharded", 1),
            Field("loss", Text(LOSSES), "how the loss of tokens is computed", "eager"),
            Field("pads_vocabulary", Flag(), "whether it is rounded up to 128 rows a tensor rank", default=False),
            Field("main_gradients", Flag(), "whether the optimizer reads fp32 copies of gradients", default=False),
            Field("output_buffers", Whole(least=0, most=1000), "micro-batches whose logits the last stage keeps", 0),
            Field("keeps_weight_shards", Flag(), "whether sharding 3 keeps shards of narrow weights", default=True),
            Field("rank_order", ListOf(Text(RANK_ORDER)), "how ranks are numbered, innermost first", RANK_ORDER),
            Field("source", Text(), "where this comes from", ""),
        ),
        Framework,
    ),
)


def read_framework(path: Path | str) -> Framework:
    """Return the framework of a file."""
    return FRAMEWORK.read(path)
