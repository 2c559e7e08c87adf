"""What an answer is about and what a plan of it decides, as tables; requests and planner.toml (TOML).

Whether a value suits its option is the command line's business: it parses what stands in a request as if it had been
typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.domain.axes import AXES, Axis
from planner.domain.configuration import LARGEST_MINI_BATCH, OPTIMIZERS, Configuration, Settings
from planner.domain.framework import STRATEGIES, Framework
from planner.domain.node_groups import GroupPart
from planner.domain.precision import precision_named
from planner.domain.ranks import RANK_ORDER
from planner.domain.request import Subject
from planner.formats.documents import Kind
from planner.formats.fields import (
    LARGEST_WHOLE,
    Field,
    Flag,
    ListOf,
    Nullable,
    Number,
    OneOf,
    Table,
    Text,
    Type,
    Whole,
    without_none,
)

__all__ = [
    "CONFIGURATION_TABLE", "GROUPS", "LARGEST_PRODUCT", "OPTION_KEYS", "PLAN_TABLE", "REQUEST", "SETTINGS",
    "SUBJECT_FIELDS", "SUBJECT_TABLE", "axis_type", "configuration_keys", "configuration_of", "framework_of",
    "plan_keys", "subject_keys", "subject_of",
]  # fmt: skip


LARGEST_PRODUCT = 10**18


def axis_type(axis: Axis) -> Type:
    """Return the type of an axis in documents."""
    return Text(axis.words) if axis.words else Whole(least=axis.least, **({"most": axis.most} if axis.most else {}))


def _field(axis: Axis) -> Field:
    if axis.always_said:
        return Field(axis.name, axis_type(axis), axis.doc)
    return Field(axis.name, axis_type(axis), f"{axis.doc}; absent: {axis.default}", axis.default)


_KINDS = ("data", "model", "pipeline", "hybrid")
SUBJECT_FIELDS = (
    Field("network", Text(), "network that is trained"),
    Field("cluster", Text(), "cluster that it is trained on"),
    Field("scenario", Text(), "what-if, as it was written; absent: things as they are", None),
    Field("device", Text(("GPU", "CPU")), "what the cluster computes on"),
    Field("memory_bytes", Whole(least=0, most=LARGEST_PRODUCT), "memory of a device", None),
    Field("usd_per_gpu_hour", Number("price"), "price of a device; absent: not known", None),
    Field("framework", Text(), "training framework"),
    Field("optimizer", Text(tuple(OPTIMIZERS)), "optimizer"),
    Field("strategy", Text(tuple(STRATEGIES)), "what overlaps in a synchronous step"),
    Field("input", Text(("storage", "synthetic")), "where samples come from"),
    Field("bucket_bytes", Number(), "gradients of a bucket; absent: the framework's", None),
    Field(
        "rank_order",
        Nullable(ListOf(Text(RANK_ORDER))),
        f"how ranks are numbered; absent: {','.join(RANK_ORDER)}",
        None,
    ),
    Field("parallelism", Text(_KINDS), "how the network is divided where a configuration does not say"),
    Field("virtual_stages", Whole(), "chunks of layers on each pipeline stage where a configuration does not say"),
    Field("recompute", Text(("none", "selective", "full")), "activations computed again, likewise"),
    Field("sharding", Whole(least=0, most=3), "stage of sharded state, likewise"),
)
SUBJECT_TABLE = Table(*SUBJECT_FIELDS, doc="what all configurations of an answer share", title="subject")
PLAN_TABLE = Table(*map(_field, AXES), make=Configuration, doc="axes of a plan", title="plan_axes")
GROUPS = Field(
    "groups",
    ListOf(
        Table(
            Field("name", Text(), "name in the cluster's file"),
            Field("nodes", Whole(), "computers of the group"),
            Field("gpus_per_node", Whole(), "devices of each"),
            Field("sub_batch", Whole(), "samples of one pass of its devices"),
            Field("accumulation_steps", Whole(), "passes summed up before an update; absent: 1", 1),
            make=GroupPart,
            title="group",
        ),
        least=1,
    ),
    "what each node group does, on a cluster that has several: nodes are those of all then, gpus_per_node, sub_batch "
    "and accumulation_steps the largest of a group",
    (),
)
CONFIGURATION_TABLE = Table(
    *(_field(axis) for axis in AXES),
    GROUPS,
    Field("framework", Text(), "training framework, one of several; absent: that of the subject", None),
    Field("gpus", Whole(most=LARGEST_PRODUCT), "devices in all"),
    Field("gradient_bytes_per_element", Whole(most=8), "bytes of a gradient element as it is sent; absent: 4", 4),
    Field("data_parallel", Whole(most=LARGEST_PRODUCT), "copies of the network"),
    Field("parallelism", Text(_KINDS), "kinds of parallelism; absent: data", "data"),
    Field(
        "mini_batch",
        Whole(most=LARGEST_MINI_BATCH),
        "samples behind an update; absent when asynchronous: a distribution",
        None,
    ),
    doc="what a plan decides; the rest stands in the subject",
    title="configuration",
)


def subject_keys(subject: Subject, memory_bytes: int | None) -> dict[str, Any]:
    """Return the keys of what an answer is about, with the memory of a device and what no plan decides yet."""
    settings = subject.settings
    return {
        **{key: getattr(subject, key) for key in ("network", "cluster", "device", "usd_per_gpu_hour")},
        "scenario": subject.scenario or None,
        **{key: getattr(settings, key) for key in ("optimizer", "strategy", "input")},
        "framework": settings.framework.label,
        "bucket_bytes": settings.bucket_bytes or None,
        "rank_order": None if settings.placed_by == RANK_ORDER else settings.placed_by,
        "memory_bytes": memory_bytes,
        "parallelism": "data",
        "virtual_stages": 1,
        "recompute": "none",
        "sharding": 0,
    }


def subject_of(keys: Mapping[str, Any], configurations: Iterable[Mapping[str, Any] | None]) -> Subject:
    """Return what an answer is about; the configurations of its plans tell what gradients are sent in."""
    own = [one for one in configurations if one and one["framework"] in (None, keys["framework"])]
    framework = _framework(keys["framework"], own)
    ranks, size = keys["rank_order"] or (), keys["bucket_bytes"] or 0.0
    settings = Settings(keys["optimizer"], keys["strategy"], keys["input"], framework, ranks, size)
    scenario, price = keys["scenario"] or "", keys["usd_per_gpu_hour"]
    return Subject(keys["network"], keys["cluster"], scenario, settings, price, keys["device"])


def _framework(label: str, configurations: Iterable[Mapping[str, Any]]) -> Framework:
    """Return a framework by its label; configurations tell what its gradients are sent in."""
    sent = {one["precision"]: one["gradient_bytes_per_element"] for one in configurations}
    others = {name: size for name, size in sent.items() if size != precision_named(name).gradient_bytes}
    types = {name: "fp32" if size > 2 else "fp16" for name, size in others.items()}
    return replace(Framework.labelled(label), message_type=types)


def framework_of(configuration: Mapping[str, Any] | None) -> Framework | None:
    """Return the framework that a configuration of a document names; None: it names none."""
    label = configuration and configuration["framework"]
    return _framework(label, [configuration]) if configuration and label else None


def plan_keys(configuration: Configuration) -> dict[str, Any]:
    """Return the keys of axes and of degrees."""
    names = (*(axis.name for axis in AXES), "gpus", "data_parallel", "parallelism")
    return {name: getattr(configuration, name) for name in names}


def configuration_keys(
    configuration: Configuration, framework: Framework, own: Framework | None = None
) -> dict[str, Any]:
    """Return the keys of a configuration, with its ``own`` framework where several were asked for."""
    c = configuration
    return {
        **plan_keys(c),
        "groups": c.groups,
        "framework": own and own.label,
        "gradient_bytes_per_element": (own or framework).message_bytes(c.precision),
        "mini_batch": None if c.mode == "async" else c.samples_per_update,
    }


def configuration_of(keys: Mapping[str, Any]) -> Configuration:
    """Return the configuration of a document."""
    return Configuration(**{axis.name: keys[axis.name] for axis in AXES}, groups=keys["groups"])


OPTION_KEYS = (
    "network", "dataset", "cluster", "calibration", "framework", *(axis.option for axis in AXES),
    "rank_order", "optimizer", "strategy", "input", "scenario", "task", "tolerance",
    "parallelism", "objective", "limit", "top", "seed", "allow_specified",
)  # fmt: skip
SWITCHES = ("allow_specified",)
"""Keys that are true or false."""
_SCALAR = (Whole(least=0, most=LARGEST_WHOLE), Number(), Text())
_VALUE = OneOf(
    (*_SCALAR, ListOf(OneOf(_SCALAR), least=1)),
    "value",
    f"text that is not empty, {Number().words}, or a list of these",
)


def _lists_and_values(**values: Any) -> Mapping[str, Any]:
    return {key: list(one) if isinstance(one, tuple) else one for key, one in without_none(**values).items()}


def _option_table(names: tuple[str, ...]) -> Table[Mapping[str, Any]]:
    return Table(
        *(
            Field(name, Flag() if name in SWITCHES else _VALUE, f"value of --{name.replace('_', '-')}", None)
            for name in names
        ),
        make=_lists_and_values,
        doc="values of options",
    )


REQUEST = Kind("request", "toml", _option_table(("target_batch", *OPTION_KEYS)))
SETTINGS = Kind("settings", "toml", _option_table(OPTION_KEYS))
