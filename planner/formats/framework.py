"""Framework files (TOML)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from planner.domain.axes import AXES
from planner.domain.framework import ANY, FACTS, GRADIENT_TYPES, STRATEGIES, WITH_LAWFUL, Framework, Strategy, Switch
from planner.domain.precision import PRECISIONS
from planner.errors import ParameterError, UnknownNameError, UsageError
from planner.formats.documents import Kind
from planner.formats.fields import (
    LARGEST_WHOLE,
    Field,
    Flag,
    ListOf,
    MapOf,
    OneOf,
    Table,
    Text,
    Type,
    Whole,
    values_of,
    without_none,
)

_STRATEGY = Table.of(Strategy, doc="what overlaps in a synchronous step")
_TYPES: Mapping[str, Type] = {
    **dict.fromkeys(("gradient_type", "message_type"), MapOf(Text(GRADIENT_TYPES), choices=(ANY, *PRECISIONS))),
    **dict.fromkeys(("shardings", "shardings_in_layers", "shardings_in_pipeline"), ListOf(Whole(least=0, most=3))),
    "strategies": MapOf(_STRATEGY, choices=tuple(STRATEGIES)),
    "lawful": MapOf(ListOf(Text(), least=1), choices=WITH_LAWFUL),
    "writes": MapOf(MapOf(OneOf((Flag(), Whole(least=0, most=LARGEST_WHOLE), Text(empty=True)))), pattern=".*"),
}


def _key(one: dataclasses.Field[Any]) -> Field:
    """Return the key of a fact, whose type its default tells where it is of its own."""
    default = {} if one.default is dataclasses.MISSING else one.default
    words = Text(one.metadata["choices"])
    kinds: tuple[tuple[type, Type], ...] = (
        (bool, Flag()), (int, Whole(least=0, most=10_000)), (tuple, ListOf(words)), (str, words),
    )  # fmt: skip
    kind = _TYPES.get(one.name) or next(of for python, of in kinds if isinstance(default, python))
    return Field(one.name, kind, one.metadata["doc"], default)


_DOES = tuple(map(_key, FACTS))
"""What a framework does; a switch changes some of it."""


_WITH_SOURCE = (*(one.name for one in _DOES), *(f"strategies.{name}" for name in STRATEGIES))
"""Keys of a file whose source may be told."""


_CHANGES: Table[Any] = Table(*_DOES, make=dict, optional=True)
Table.of(
    Switch,
    _CHANGES,
    make=lambda **keys: Switch(without_none(**{one.name: keys.pop(one.name) for one in _CHANGES.fields}), **keys),
    doc="what a user may turn on: the keys that it changes; what it fuses is fused besides",
    split=lambda one: values_of(one) | one.changes,
)
_VERSION = Table(
    _CHANGES,
    Field("source", Text(), "where that comes from", None),
    make=without_none,
    doc="what a version did otherwise: the keys that it changes",
)


def _framework(**keys: Any) -> Framework:
    """Return the framework of a file; ParameterError where its strategies or switches contradict themselves."""
    framework = Framework(**keys)
    for name, values in framework.lawful.items():
        for value in values:
            if value not in (words := next(one.words for one in AXES if one.name == name)):
                raise UnknownNameError(f"lawful.{name}", value, words)
    changed = (one.changes for one in framework.switches.values())
    for some in (keys, *changed, *framework.versions.values()):
        strategies: Mapping[str, Strategy] = some.get("strategies", {})
        if "bucketed" in strategies and strategies["bucketed"].bucket_bytes <= 0:
            raise ParameterError("bucket_MiB of strategies.bucketed", "above 0", 0, "'wait-free' sends layer by layer")
        for name, overlap, other in (("wait-free", True, "no-overlap"), ("no-overlap", False, "wait-free")):
            if name in strategies and strategies[name].overlap != overlap:
                got, remedy = str(not overlap).lower(), f"what does so is called {other!r}"
                raise ParameterError(f"overlap of strategies.{name}", str(overlap).lower(), got, remedy)
    for name, switch in framework.switches.items():
        try:
            framework.with_switches([name])
        except UsageError:
            rule, needs = "switches that can be on together with it", ", ".join(switch.needs)
            remedy = "one of them excludes another"
            raise ParameterError(f"needs of switches.{name}", rule, needs or name, remedy) from None
    return framework


_FRAMEWORK: Table[Framework] = Table.of(
    Framework,
    *_DOES,
    Field(
        "versions",
        MapOf(_VERSION, r"\d+(\.\d+)*"),
        "what older versions did otherwise, by the first numbers of the version",
        {},
    ),
    Field("sources", MapOf(Text(), choices=_WITH_SOURCE), "where values of single keys come from, by key", {}),
    make=_framework,
)
FRAMEWORK = Kind("framework", "toml", _FRAMEWORK)


_KEYS_OF = {
    "pipeline": (
        "schedules", "shardings_in_pipeline", "fewest_micro_batches", "scatters_boundary", "stages", "deals",
        "output_buffers", "whole_gradients",
    ),
    "tensor": ("copies_keys", "overlaps_tensor", "experts_take_sequence", "shardings_in_layers"),
    "context": ("context",),
}  # fmt: skip
"""Way to split networks, one of PARALLELISMS -> keys that say how."""


def framework_keys(framework: Framework) -> list[tuple[str, str, str, str]]:
    """Return every key that says what a framework does, but for its strategies: key, value, meaning and source.

    Nothing of ways to split networks that it lacks.
    """

    def written(one: Field) -> str:
        value = getattr(framework, one.target)
        if isinstance(value, Mapping):
            value = tuple(f"{key} {item}" for key, item in value.items())
        return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(one.type.write(value)).lower()

    rows, sources = [], dict(framework.sources)
    for name in framework.switched:
        sources |= dict.fromkeys(framework.switches[name].changes, f"switch {name}")
    omitted = {"strategies", "writes"}.union(*(names for kind, names in _KEYS_OF.items() if kind not in framework.can))
    rows += [(one.name, written(one), one.doc, sources.get(one.name, "")) for one in _DOES if one.name not in omitted]
    return rows
