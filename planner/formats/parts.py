"""What documents share: configurations, subjects, requests with sources, warnings, citations; files of requests.

Whether a value suits its option is the command line's business: it parses what stands in a request as if it had been
typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.domain.axes import AXES, BEST_ORDER, MODES, RANK_ORDER, Axis
from planner.domain.cluster import GroupPart
from planner.domain.configuration import LARGEST_MINI_BATCH, Configuration, Settings
from planner.domain.framework import Framework
from planner.domain.objective import LIMITS
from planner.domain.precision import precision_named
from planner.domain.prediction import Citation, PlanWarning
from planner.domain.request import DEFAULT, Sourced, Subject
from planner.domain.suggestion import CHOICES, Loosening, SearchReport
from planner.errors import Refusal
from planner.formats.documents import Kind
from planner.formats.fields import (
    LARGEST_WHOLE,
    REQUIRED,
    Field,
    FieldError,
    Flag,
    ListOf,
    MapOf,
    Nullable,
    Number,
    OneOf,
    Table,
    Text,
    Type,
    Whole,
    record_of,
    values_of,
    without_none,
)

LARGEST_PRODUCT = 10**18


def axis_type(axis: Axis) -> Type:
    """Return the type of an axis in documents."""
    return Text(axis.words) if axis.words else Whole(least=axis.least, **({"most": axis.most} if axis.most else {}))


def _field(axis: Axis) -> Field:
    if axis.always_said:
        return Field(axis.name, axis_type(axis), axis.doc)
    return Field(axis.name, axis_type(axis), f"{axis.doc}; absent: {axis.default}", axis.default)


_KINDS = ("data", "model", "pipeline", "hybrid")
_OF_SUBJECT, _OF_SETTINGS = Table.of(Subject), Table.of(Settings)
SUBJECT_TABLE = Table(
    _OF_SUBJECT,
    _OF_SETTINGS,
    Field("network_option", Text(), "what --network took; absent: the name of the network, or as the request says", ""),
    Field("memory_bytes", Whole(least=0, most=LARGEST_PRODUCT), "memory of a device", None),
    Field("framework", Text(), "training framework"),
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
    doc="what all configurations of an answer share",
    title="subject",
)
PLAN_TABLE = Table(*map(_field, AXES), make=Configuration, doc="axes of a plan", title="plan_axes")
GROUPS = Field(
    "groups",
    ListOf(Table.of(GroupPart, title="group"), least=1),
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
    """Return the keys of what an answer is about, with the memory of a device and what no plan decides yet.

    Those that are absent are left out.
    """
    settings = subject.settings
    keys = values_of(settings) | values_of(
        subject, network_option="" if subject.network_option == subject.network else subject.network_option,
        framework=settings.framework.label,
        rank_order=None if settings.placed_by == RANK_ORDER else settings.placed_by, memory_bytes=memory_bytes,
        parallelism="data", virtual_stages=1, recompute="none", sharding=0,
    )  # fmt: skip
    return {one.target: keys[one.target] for one in SUBJECT_TABLE.fields if keys[one.target] != one.default}


def subject_of(keys: Mapping[str, Any], configurations: Iterable[Mapping[str, Any] | None]) -> Subject:
    """Return what an answer is about; the configurations of its plans tell what gradients are sent in."""
    own = [one for one in configurations if one and one["framework"] in (None, keys["framework"])]
    framework = _framework(keys["framework"], own)
    settings = record_of(Settings, keys, framework=framework, rank_order=keys["rank_order"] or ())
    return record_of(Subject, keys, settings=settings)


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


OPTION_KEYS = (
    "network", "dataset", "cluster", "calibration", "framework", *(axis.option for axis in AXES),
    "rank_order", "optimizer", "trainable", "strategy", "input", "scenario", "task", "tolerance",
    "parallelism", "objective", "limit", "top", "seed", "allow_specified", "allow_lossy", "only_calibration",
)  # fmt: skip
SWITCHES = ("allow_specified", "allow_lossy", "only_calibration")
"""Keys that are true or false."""
_SCALAR = (Whole(least=0, most=LARGEST_WHOLE), Number(), Text())
_VALUE = OneOf(
    (*_SCALAR, ListOf(OneOf(_SCALAR), least=1)),
    "value",
    f"text that is not empty, {Number().words}, or a list of these",
)


def _option_table(names: tuple[str, ...]) -> Table[Mapping[str, Any]]:
    return Table(
        *(
            Field(name, Flag() if name in SWITCHES else _VALUE, f"value of --{name.replace('_', '-')}", None)
            for name in names
        ),
        make=lambda **values: {
            key: list(one) if isinstance(one, tuple) else one for key, one in values.items() if one is not None
        },
        doc="values of options",
    )


REQUEST = Kind("request", "toml", _option_table(("target_batch", *OPTION_KEYS)))
SETTINGS = Kind("settings", "toml", _option_table(OPTION_KEYS))


Lists = Mapping[str, Mapping[int, Sequence[PlanWarning]]]
"""Key of a list -> position in it -> warnings of what stands there."""


def warning_table(**lists: str) -> Table[dict[str, Any]]:
    """Return the table of a warning with a key for each list of positions, of that description."""
    subject = Field("subject", Text(), "what it is about", "")
    of = (subject, *(Field(key, ListOf(Whole()), doc, None) for key, doc in lists.items()))
    again = ListOf(Table(*of, title="_".join(("said_again", *lists))), least=1)
    own = (Field("code", Text(), "for programs"), Field("message", Text(), "for people"))
    also = Field("also", again, "other subjects of the same sentence", ())
    return Table(*own, *of, also, title="_".join(("warning", *lists)))


def warning_keys(first: Iterable[PlanWarning], lists: Lists) -> tuple[dict[str, Any], ...]:
    """Return the keys of every warning once: the ``first`` ones, then those that stand in lists alone, in order.

    The positions of one that all of a list have are left out.
    """
    of_lists = (warning for rows in lists.values() for warnings in rows.values() for warning in warnings)
    by_sentence: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in dict.fromkeys((*first, *of_lists)):
        subject: dict[str, Any] = {"subject": one.subject}
        for key, rows in lists.items():
            positions = [at for at, warnings in rows.items() if one in warnings]
            if len(positions) < len(rows):
                subject[key] = positions
        by_sentence.setdefault((one.code, one.message), []).append(subject)
    return tuple(
        {"code": code, "message": message, **own, "also": tuple(also)}
        for (code, message), (own, *also) in by_sentence.items()
    )


def warnings_of(rows: Iterable[Mapping[str, Any]], key: str = "", position: int = 0) -> tuple[PlanWarning, ...]:
    """Return the warnings of rows; with ``key`` those of what stands at a position of its list."""
    return tuple(
        PlanWarning(row["code"], one["subject"], row["message"])
        for row in rows
        for one in (row, *row["also"])
        if not key or one[key] is None or position in one[key]
    )


_CITATION = Table.of(
    Citation, Field("names", ListOf(Text(), least=1), "names of calibrations"), make=dict, title="citation"
)
CITATIONS = Field("citations", ListOf(_CITATION), "of the calibrations that the answer rests on", ())


def citation_keys(citations: Sequence[Citation]) -> tuple[dict[str, Any], ...]:
    """Return the keys of citations."""
    names: dict[Citation, list[str]] = {}
    for one in citations:
        names.setdefault(replace(one, name=""), []).append(one.name)
    return tuple(values_of(one, names=of_one) for one, of_one in names.items())


def citations_of(keys: Iterable[Mapping[str, Any]]) -> tuple[Citation, ...]:
    """Return what the keys say."""
    return tuple(record_of(Citation, one, name=name) for one in keys for name in one["names"])


SEARCH_TABLE = Table.of(SearchReport)


def _loosening(option: str, value: str, message: str) -> Loosening:
    """Return a constraint to loosen; FieldError where it has not as many values as options."""
    options, values = option.split(), value.split()
    if len(options) != len(values):
        raise FieldError("loosen", Refusal("value", f"value must be one for each of {option}", got=value))
    return Loosening(tuple(zip(options, values, strict=True)), message)


LOOSENING_TABLE = Table.of(
    Loosening, Field("option", Text(), "option to loosen"), Field("value", Text(), "value that suffices"),
    Field("message", Text(), "what is reached then"), make=_loosening,
)  # fmt: skip
LONGEST_LIST = 256
"""Values up to which an even range is a list."""

_RANGE = Table(
    Field("first", Whole(), "least value"),
    Field("last", Whole(), "largest value"),
    Field("step", Whole(), "from each value to the next"),
    make=lambda first, last, step: tuple(range(first, last + 1, step)),
)
_COUNTS = Nullable(OneOf((ListOf(Whole(least=0), least=1), _RANGE, Whole(least=0)), "counts"))
"""One number alone, as in older documents of degrees."""
_NAMES = ListOf(Text(), least=1)


def _type_of(axis: Axis) -> Type:
    words: Type = ListOf(Text(axis.words), least=1)
    if axis.splits:
        words = OneOf((words, Text(axis.words)), f"values of {axis.option}")
    return _COUNTS if not axis.words else Nullable(words) if axis.default_in_suggest else words


_TYPES: Mapping[str, tuple[Type, str]] = {
    "network": (Text(), "network to train"),
    "dataset": (Nullable(Text()), "data set of an epoch; absent: none"),
    "cluster": (Text(), "cluster to train on"),
    "calibration": (ListOf(Text()), "calibrations, first come first served"),
    "framework": (OneOf((Text(), ListOf(Text(), least=1)), "framework"), "training framework, or several to try"),
    **{axis.option: (_type_of(axis), axis.asked) for axis in sorted(AXES, key=lambda axis: axis.name != "mode")},
    "parallelism": (_NAMES, "kinds of parallelism to try"),
    "rank_order": (
        ListOf(Text((*RANK_ORDER, *BEST_ORDER))),
        "axes by which ranks are numbered, inner ones first; or best",
    ),
    "optimizer": (Text(), "optimizer"),
    "trainable": (Text(), "which parameters are trained"),
    "strategy": (Text(), "what overlaps in a synchronous step"),
    "input": (Text(), "where samples come from"),
    "scenario": (Nullable(Text()), "what-if, as it was written; absent: things as they are"),
    "task": (Text(), "what runs"),
    "target_batch": (Whole(most=10**15), "wanted mini-batch [samples]"),
    "tolerance": (MapOf(Number(), choices=MODES), "accepted distance from the target, relative to it, by mode"),
    "objective": (Text(), "what is minimised"),
    "limit": (
        MapOf(Number(), choices=tuple(LIMITS)),
        "what a plan may take at most: epoch [s], cost [USD], numbers; window: the least share of updates inside it",
    ),
    "only_calibration": (Flag(), "whether nothing but the named calibrations serves"),
    "allow_specified": (Flag(), "whether fp8 and int8 are candidates by the data sheet alone"),
    "allow_lossy": (Flag(), "whether training in int8 is a candidate, which loses accuracy"),
    "top": (Whole(), "plans to report"),
    "pareto": (Flag(), "whether the Pareto front is wanted"),
    "sensitivity": (Flag(), "whether a change of single inputs is told"),
    "epochs": (Whole(), "epochs of the whole training"),
    "tokens": (Number(), "tokens of the whole training of a language model"),
    "deadline": (Number(), "in which it is to end, on the fewest nodes [s]"),
    "choose": (Text(CHOICES), "which of the tied plans is taken"),
    "seed": (Whole(least=0, most=2**63 - 1), "seed of everything random"),
}


def _keys_of_value(one: Sourced[object]) -> dict[str, object]:
    """Return a value and its source; many whole numbers that are evenly spaced as first, last and step."""
    value = one.value
    if isinstance(value, tuple) and len(value) > LONGEST_LIST and all(isinstance(one, int) for one in value):
        first, last, step = value[0], value[-1], value[1] - value[0]
        if step > 0 and value == tuple(range(first, last + 1, step)):
            value = {"first": first, "last": last, "step": step}
    return {"value": value, "source": one.source}


REQUEST_TABLE = Table(
    *(
        Field(
            key,
            Table(
                Field("value", kind, doc, None if isinstance(kind, Nullable) else REQUIRED),
                Field("source", Text(), "where it comes from; absent: default", DEFAULT),
                make=Sourced,
                split=_keys_of_value,
            ),
            doc,
            REQUIRED if key == "target_batch" else None,
        )
        for key, (kind, doc) in _TYPES.items()
    ),
    make=without_none,
    doc="every value with its source",
)
