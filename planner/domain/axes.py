"""The axes of a plan: what a configuration decides, each declared once; the order of ranks, and what is trained.

A declaration here is all that an axis needs: records and arrays of configurations, the space that is searched, the
order of plans, what is loosened where nothing fits, options, keys of files, columns of runs and of tables are made from
it. Nothing here imports NumPy, because ``planner --help`` lists the options.

The order of ranks: along which axis those of neighbouring numbers differ.
"""

# ruff: noqa: RUF009 - what axis() returns is a field

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

from planner.domain.precision import PRECISIONS
from planner.errors import ParameterError, nearest_name

MODES = ("sync", "async")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-h2", "zero-bubble-v", "no-flush")
"""Orders of a pipeline's passes; zero-bubble is ZB-H1, zero-bubble-v ZB-V (Qi et al. 2023), no-flush PipeDream's."""
SPLIT = "every lawful one, as --parallelism says"

Count = TypeVar("Count")
Word = TypeVar("Word")
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis.

    Attributes
    ----------
    name : in records, in the configurations of documents, and of the column in runs
    words : its values, where they are words; empty: whole numbers
    least, most : the smallest and the largest of its whole numbers; ``most`` 0: any
    default : what a prediction and a run take that do not say; None: it follows from others
    is_degree : whether so many devices share one copy of the network: the data-parallel degree is GPUs over all such
        degrees
    splits : whether it says how a network is split over devices, or what is kept of it: a plan with the defaults of all
        such axes has a whole network on every device. A search tries more than the default where a network's
        architecture and the framework allow it
    is_shard : whether it says which part of each layer a rank computes
    ranks : of a degree, its name in orders of ranks and among what frameworks can
    only_sync : whether an asynchronous plan has its default
    of_cluster : {"", "any", "all"}, whether a plan has at most those of the cluster, and which numbers a search tries
        that is not told
    is_loosened : whether an answer without plans tries other values than those asked for
    tells_apart : whether plans that differ in it alone are different ones, even if they take as long
    always_said : whether documents and sentences say it even where it has its default
    title : in a sentence
    short : of a value in the words of a plan, ``{}`` in its place; empty: the title and the value
    option : name of the option and of the key in requests and settings
    help : of the option
    last_resort : values that a search tries where it tries the default alone otherwise and no plan fits in memory so
    default_in_suggest, default_in_predict : what holds when nothing says otherwise, in words; empty: the default (of a
        search in a prediction without one)
    doc, asked : what the key of a configuration means, and that of a request
    heading : of its column in tables, where it has one of its own
    """

    name: str = ""
    words: tuple[str, ...] = ()
    least: int = 1
    most: int = 0
    default: int | str | None = None
    is_degree: bool = False
    splits: bool = False
    is_shard: bool = False
    ranks: str = ""
    only_sync: bool = False
    of_cluster: str = ""
    is_loosened: bool = True
    tells_apart: bool = True
    always_said: bool = False
    title: str = ""
    short: str = ""
    option: str = ""
    help: str = ""
    last_resort: tuple[int | str, ...] = ()
    default_in_suggest: str = ""
    default_in_predict: str = ""
    doc: str = ""
    asked: str = ""
    heading: str = ""

    def code(self, value: int | str | None) -> int:
        """Return the number that stands for a value in arrays: its position in ``words``, else itself."""
        return self.words.index(str(value)) if self.words else int(value or 0)


def axis(*, must_be_given: bool = False, **attributes: Any) -> Any:
    """Return the field of an axis; ``must_be_given``: a record of a configuration has no default of it."""
    one = Axis(**attributes)
    default = MISSING if must_be_given or one.default is None else one.default
    return field(default=default, metadata={"axis": one})


@dataclass(frozen=True, slots=True)
class Axes(Generic[Count, Word]):
    """One value an axis, or one array; in the order in which plans that are equal otherwise are ranked."""

    nodes: Count = axis(
        must_be_given=True, default=1, of_cluster="any",
        always_said=True, title="nodes", option="nodes", help="Nodes.", default_in_suggest="1 to the cluster's",
        doc="computers", asked="numbers of nodes to try",
    )  # fmt: skip
    gpus_per_node: Count = axis(
        of_cluster="all",
        always_said=True, title="GPUs per node", option="gpus_per_node", help="GPUs of each node.",
        default_in_suggest="all", doc="devices of each", asked="numbers of GPUs of each node to try",
    )  # fmt: skip
    sub_batch: Count = axis(
        always_said=True, title="sub-batch", option="sub_batch", help="Samples a GPU takes through one pass.",
        default_in_suggest="1 to the largest that fits",
        default_in_predict="required unless --mini-batch is given",
        doc="samples of one pass", asked="sub-batches to try; absent: every one that fits", heading="sub-\nbatch",
    )  # fmt: skip
    accumulation_steps: Count = axis(
        default=1, only_sync=True,
        always_said=True, title="accumulation", option="accumulation",
        help="Sub-batches a GPU sums up before one update.",
        default_in_suggest="every value that can reach the target (1 when asynchronous)",
        doc="passes summed up before an update",
        asked="accumulation steps to try; absent: every number that can reach the target", heading="accu-\nmulate",
    )  # fmt: skip
    precision: Word = axis(
        words=tuple(PRECISIONS), default="fp32", tells_apart=False,
        always_said=True, title="precision", option="precision",
        help=f"Precisions of training: {', '.join(PRECISIONS)}.",
        default_in_suggest="every one with a usable sub-model",
        doc="precision of training", asked="precisions to try; absent: every one with a usable sub-model",
        heading="preci-\nsion",
    )  # fmt: skip
    mode: Word = axis(
        words=MODES, default="sync", is_loosened=False,
        always_said=True, title="mode", option="mode", help="Updates: synchronous or asynchronous.",
        doc="synchronous or asynchronous updates", asked="kinds of updates to try", heading="mode",
    )  # fmt: skip
    tensor_parallel: Count = axis(
        default=1, is_degree=True, splits=True, only_sync=True, is_shard=True, ranks="tensor",
        title="tensor-parallel degree", short="tensor {}", option="tensor",
        help="GPUs that share each layer of attention blocks, or single layers of other networks.",
        default_in_suggest=SPLIT, doc="devices that share each layer", asked="tensor-parallel degrees to try",
        heading="ten-\nsor",
    )  # fmt: skip
    sequence_parallel: Word = axis(
        words=("off", "on"), default="off", splits=True, only_sync=True, is_shard=True,
        title="sequence parallelism", short="sequence parallel", option="sequence_parallel",
        help="Whether tensor-parallel ranks share normalisation, dropout and sums by positions too.",
        default_in_suggest=SPLIT, doc="whether tensor-parallel ranks share what is between products by positions",
        asked="sequence parallelism to try", heading="seq.\npar.",
    )  # fmt: skip
    context_parallel: Count = axis(
        default=1, is_degree=True, splits=True, only_sync=True, is_shard=True, ranks="context",
        title="context-parallel degree", short="context {}", option="context",
        help="GPUs that share the positions of each sample.",
        default_in_suggest="what leaves a rank 8192 positions of long samples, else 1",
        doc="devices that share the positions of a sample",
        asked="context-parallel degrees to try", heading="con-\ntext",
    )  # fmt: skip
    expert_parallel: Count = axis(
        default=1, splits=True, only_sync=True, is_shard=True, ranks="expert",
        title="expert-parallel degree", short="expert {}", option="expert",
        help="GPUs, of those that share no layer, that share experts.",
        default_in_suggest=SPLIT, doc="devices that share the experts of a layer",
        asked="expert-parallel degrees to try", heading="ex-\npert",
    )  # fmt: skip
    pipeline_parallel: Count = axis(
        default=1, is_degree=True, splits=True, only_sync=True, ranks="pipeline",
        title="pipeline stages", short="pipeline {}", option="pipeline",
        help="Stages of layers, each on GPUs of its own.",
        default_in_suggest=SPLIT, doc="stages of layers", asked="numbers of pipeline stages to try",
        heading="pipe-\nline",
    )  # fmt: skip
    virtual_stages: Count = axis(
        default=1, splits=True, only_sync=True,
        title="virtual stages", short="virtual {}", option="virtual_stages",
        help="Chunks of layers that each pipeline stage holds.",
        default_in_suggest=SPLIT, doc="chunks of layers on each pipeline stage", asked="virtual stages to try",
        heading="vir-\ntual",
    )  # fmt: skip
    schedule: Word = axis(
        words=SCHEDULES, default="1f1b", splits=True, only_sync=True,
        title="schedule", option="schedule",
        help="Order of a pipeline's passes; 1f1b with virtual stages is interleaved.",
        doc="order of a pipeline's passes", asked="schedules of pipelines to try", heading="sched-\nule",
    )  # fmt: skip
    stages: Word = axis(
        words=("even", "best"), default="even", splits=True, only_sync=True, is_loosened=False,
        title="stages", short="{} stages", option="stages",
        help="Layers of each pipeline stage: as many blocks on each (without blocks: layers that take as long), or "
        "those that make the slowest stage fastest, of all that fit.",
        doc="layers of each pipeline stage: even, or what makes the slowest one fastest, of all that fit",
        asked="ways to deal out layers to stages to try", heading="stages",
    )  # fmt: skip
    sharding: Count = axis(
        least=0, most=3, default=0, splits=True, only_sync=True,
        title="sharding", option="sharding",
        help="What data-parallel ranks share: 1 optimizer state, 2 gradients too, 3 weights too (ZeRO, FSDP).",
        last_resort=(0, 1, 2, 3), default_in_suggest=SPLIT,
        doc="what data-parallel ranks share: 1 optimizer state, 2 gradients too, 3 weights too",
        asked="stages of sharding to try", heading="shard-\ning",
    )  # fmt: skip
    shard_group: Word = axis(
        words=("all", "node"), default="all", splits=True, only_sync=True,
        title="sharding group", option="shard_group", help="Whether all data-parallel ranks share, or those of a node.",
        doc="ranks that share sharded state", asked="groups of sharding to try", heading="shard\ngroup",
    )  # fmt: skip
    recompute: Word = axis(
        words=("none", "selective", "full", "per-stage"), default="none", splits=True, only_sync=True,
        title="recompute", option="recompute",
        help="Activations computed again in the backward pass: none, attention's (selective), all of each layer, or on "
        "each pipeline stage the least that fits.",
        last_resort=("none", "selective", "full"), default_in_suggest=SPLIT,
        doc="activations computed again in the backward pass",
        asked="kinds of recompute to try", heading="re-\ncompute",
    )  # fmt: skip
    recompute_every: Count = axis(
        default=1, splits=True, only_sync=True,
        title="layers between kept inputs", short="inputs of 1 layer in {}", option="recompute_every",
        help="With recompute full: layers of which one input is kept, and which are computed again together.",
        doc="layers of which one input is kept, with recompute full",
        asked="layers of which one input is kept, with recompute full", heading="1 in",
    )  # fmt: skip
    offload: Word = axis(
        words=("none", "optimizer", "activations", "paged-activations"), default="none", splits=True, only_sync=True,
        title="offload", option="offload",
        help="What lies in host memory; of activations what does not fit, prefetched, or paged in by faults. A search "
        "tries it where nothing fits without.",
        last_resort=("none", "optimizer", "activations", "paged-activations"),
        doc="what lies in host memory", asked="kinds of offload to try", heading="off-\nload",
    )  # fmt: skip


def with_axes(record: type[Record]) -> type[Record]:
    """Return a class with a field for every axis that it does not write out itself; for a class decorator.

    Such a field has the default of its axis.
    """
    for one in AXES:
        if one.name not in record.__annotations__:
            record.__annotations__[one.name] = "str" if one.words else "int"
            setattr(record, one.name, one.default)
    return record


def axes_of(record: type[Axes[Any, Any]]) -> tuple[Axis, ...]:
    """Return the axes that a record declares."""
    return tuple(replace(one.metadata["axis"], name=one.name) for one in fields(record) if "axis" in one.metadata)


AXES = axes_of(Axes)


TENSOR, CONTEXT, EXPERT, DATA, PIPELINE = "tensor", "context", "expert", "data", "pipeline"
RANK_ORDER = (TENSOR, CONTEXT, EXPERT, DATA, PIPELINE)
"""Along which axis neighbouring ranks differ, innermost first: Megatron-LM's tp-cp-ep-dp-pp."""
BEST_ORDER = ("best",)
"""In place of an order: that which is fastest for a plan."""


def check_rank_order(what: str, order: Sequence[str]) -> None:
    """Raise ParameterError unless an order names every axis once; it offers the order nearest to what was meant.

    >>> check_rank_order("order", ("pipeline", "tensor"))
    Traceback (most recent call last):
    ...
    planner.errors.ParameterError: order must be tensor, context, expert, data, pipeline in some order, each once, \
got 'pipeline,tensor'; write pipeline,tensor,context,expert,data
    """
    if sorted(order) == sorted(RANK_ORDER):
        return
    meant = dict.fromkeys(filter(None, (nearest_name(one, RANK_ORDER) for one in order[: len(RANK_ORDER)])))
    near = ",".join(dict.fromkeys((*meant, *RANK_ORDER)))
    rule = f"{', '.join(RANK_ORDER)} in some order, each once"
    raise ParameterError(what, rule, ",".join(order), f"write {near}")


ALL, LAST, LORA = "all", "last", "lora"
ATTENTION = "attention"
_DIGITS = re.compile(r"[0-9]{1,18}")
_FORM = "all, last:K or lora:rank=R[,targets=attention|all]"


class Trainable(NamedTuple):
    """ALL; LAST and how many layers; LORA, its rank, and the products that it changes, ``attention`` or ``all``."""

    kind: str = ALL
    number: int = 0
    targets: str = ATTENTION


def trainable_of(text: str, what: str = "--trainable") -> Trainable:
    """Return what a text says; ParameterError where it is of another form.

    >>> trainable_of("last:2"), trainable_of("lora:rank=16,targets=all")
    (Trainable(kind='last', number=2, targets='attention'), Trainable(kind='lora', number=16, targets='all'))
    """
    kind, _, rest = text.partition(":")
    if kind not in (ALL, LAST, LORA):
        near = nearest_name(kind, (ALL, LAST, LORA))
        raise ParameterError(what, _FORM, text, f"did you mean {near!r}?" if near else "")
    if kind == ALL and text == ALL:
        return Trainable()
    keys = {"rank": rest} if kind == LAST else dict(one.split("=", 1) for one in rest.split(",") if "=" in one)
    number, targets = keys.pop("rank", ""), keys.pop("targets", ATTENTION)
    is_form = kind != ALL and not keys and rest.count("=") in ((0,) if kind == LAST else (1, 2))
    if not is_form or targets not in (ATTENTION, ALL) or not _DIGITS.fullmatch(number):
        raise ParameterError(what, _FORM, text, "write for example last:2 or lora:rank=16")
    if int(number) < 1:
        raise ParameterError(f"{'rank' if kind == LORA else 'layers'} in {what}", "at least 1", number)
    return Trainable(kind, int(number), targets)
