"""Framework files (TOML)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.domain.axes import AXES, SCHEDULES
from planner.domain.framework import (
    ANY,
    ASYNCHRONOUS,
    COMPOSED,
    CONTEXTS,
    DEALS,
    FEWEST,
    FUSIONS,
    GRADIENT_TYPES,
    LAUNCHES,
    LAYOUTS,
    LOSSES,
    PARALLELISMS,
    REPEATED,
    STAGES,
    STATE_TYPES,
    STRATEGIES,
    UPDATES,
    Framework,
    Strategy,
    Switch,
)
from planner.domain.precision import PRECISIONS
from planner.domain.ranks import RANK_ORDER
from planner.errors import ParameterError, UnknownNameError, UsageError
from planner.formats.documents import Kind
from planner.formats.fields import Field, Flag, ListOf, MapOf, Number, Table, Text, Whole, without_none

__all__ = ["FRAMEWORK", "framework_keys"]

_STRATEGY = Table(
    Field("prefetch", Flag(), "whether input is loaded during the step before", default=True),
    Field("overlap", Flag(), "whether gradients are sent as they become ready, not after them all", default=True),
    Field("first_bucket_MiB", Number("MiB"), "gradients sent first; 0: by layer", 0.0, "first_bucket_bytes"),
    Field("bucket_MiB", Number("MiB"), "gradients sent together later; 0: by layer", 0.0, "bucket_bytes"),
    Field("best_buckets", Flag(), "whether what is sent together is what is done first", default=False),
    Field("cycle_ms", Number("ms"), "how often what is ready is sent together; 0: when it is", 0.0, "cycle_s"),
    Field("servers", Flag(), "whether gradients go to parameter servers, one on each node", default=False),
    make=Strategy,
    doc="what overlaps in a synchronous step",
)
_LAWFUL = ("recompute", "sequence_parallel", "shard_group", "offload")
_BY_PRECISION = MapOf(Text(GRADIENT_TYPES), choices=(ANY, *PRECISIONS))
_DOES = (
    Field("input_gradient", Flag(), "whether the gradient of the network's input is computed", default=False),
    Field("gradient_type", _BY_PRECISION, "what gradients are held in, by precision; others: in its own type", {}),
    Field("message_type", _BY_PRECISION, "what gradients are sent in, by precision; others: as they are held", {}),
    Field("narrow_gradients", Flag(), "whether those that kernels write stay beside wider ones", default=False),
    Field("state_type", Text(STATE_TYPES), "what the optimizer keeps moments in", "fp32"),
    Field("strategy", Text(tuple(STRATEGIES)), "when gradients are sent, where nothing else is asked for", "wait-free"),
    Field("strategies", MapOf(_STRATEGY, choices=tuple(STRATEGIES)), "those it follows in its own way", {}),
    Field("can", ListOf(Text(PARALLELISMS)), "ways in which it splits networks", PARALLELISMS),
    Field("schedules", ListOf(Text(SCHEDULES)), "orders of a pipeline's passes that it has", SCHEDULES),
    Field("shardings", ListOf(Whole(least=0, most=3)), "stages of sharding that it has", (0, 1, 2, 3)),
    Field("shardings_in_pipeline", ListOf(Whole(least=0, most=3)), "the same beside a pipeline", (0, 1, 2, 3)),
    Field("lawful", MapOf(ListOf(Text(), least=1), choices=_LAWFUL), "values of other axes, where it lacks some", {}),
    Field("asynchronous", Text(ASYNCHRONOUS), "how replicas update weights that do not wait", "update-threads"),
    Field("context", Text(CONTEXTS), "what context-parallel ranks divide in attention", "positions"),
    Field("copies_keys", Flag(), "whether more tensor ranks than heads of keys and values copy them", default=True),
    Field("experts_take_sequence", Flag(), "whether tensor ranks with experts are sequence parallel", default=False),
    Field("fewest_micro_batches", Text(FEWEST), "how many a 1f1b schedule takes at least", "any"),
    Field(
        "fuses",
        ListOf(Text(FUSIONS)),
        "what its kernels do in one: bias and activation, bias and sum, scale, mask and softmax, norm and activation",
        (),
    ),
    Field("composes", ListOf(Text(COMPOSED)), "what it computes from primitives, each a kernel of its own", ()),
    Field("layout", Text(LAYOUTS), "how images lie in memory", "unstated"),
    Field(
        "update", Text(UPDATES), "kernels of an update: one a layer, over many tensors, or one an operation", "layer"
    ),
    Field("launch", Text(LAUNCHES), "how kernels are launched", "eager"),
    Field("scatters_boundary", Flag(), "whether tensor ranks send parts to the next stage", default=False),
    Field("stages", Text(STAGES), "what its pipeline's stages are", "modules"),
    Field(
        "deals", Text(DEALS), "how it deals out blocks to stages: evenly, with both ends counted, or equally", "blocks"
    ),
    Field("selective", Text(REPEATED), "what selective recompute makes again", "attention"),
    Field("overlaps_tensor", Flag(), "whether messages of tensor ranks run beside products", default=False),
    Field("gathers_ahead", Whole(least=0, most=1000), "units gathered ahead where weights are sharded", 1),
    Field("loss", Text(LOSSES), "how the loss of tokens is computed", "eager"),
    Field("pads_vocabulary", Flag(), "whether it is rounded up to 128 rows a tensor rank", default=False),
    Field("pads_products", Flag(), "whether sides of products are rounded up to 16 bytes", default=False),
    Field("main_gradients", Flag(), "whether the optimizer reads fp32 copies of gradients", default=False),
    Field("output_buffers", Whole(least=0, most=1000), "micro-batches whose logits the last stage keeps", 0),
    Field("keeps_weight_shards", Flag(), "whether sharding 3 keeps shards of narrow weights", default=True),
    Field("rank_order", ListOf(Text(RANK_ORDER)), "how ranks are numbered, innermost first", RANK_ORDER),
)
"""What a framework does; a switch changes some of it."""


_WITH_SOURCE = (*(one.name for one in _DOES), *(f"strategies.{name}" for name in STRATEGIES))
"""Keys of a file whose source may be told."""


def _switch(
    aliases: tuple[str, ...], needs: tuple[str, ...], excludes: tuple[str, ...], source: str, **changes: Any
) -> Switch:
    return Switch(without_none(**changes), aliases, needs, excludes, source)


_CHANGES = tuple(replace(one, default=None) for one in _DOES)
_SWITCH = Table(
    Field("aliases", ListOf(Text()), "names of the framework with this switch on, in lower case", ()),
    Field("needs", ListOf(Text()), "other switches that are on with it", ()),
    Field("excludes", ListOf(Text()), "other switches that cannot be on beside it", ()),
    Field("source", Text(), "what it is, and where that comes from", ""),
    *_CHANGES,
    make=_switch,
    doc="what a user may turn on: the keys that it changes; what it fuses is fused besides",
    split=lambda one: {key: getattr(one, key) for key in ("aliases", "needs", "excludes", "source")} | one.changes,
)
_VERSION = Table(
    *_CHANGES,
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
        _check_strategies(some.get("strategies", {}))
    for name, switch in framework.switches.items():
        try:
            framework.with_switches([name])
        except UsageError:
            rule, needs = "switches that can be on together with it", ", ".join(switch.needs)
            remedy = "one of them excludes another"
            raise ParameterError(f"needs of switches.{name}", rule, needs or name, remedy) from None
    return framework


def _check_strategies(strategies: Mapping[str, Strategy]) -> None:
    of_buckets = strategies.get("bucketed")
    if of_buckets is not None and of_buckets.bucket_bytes <= 0:
        raise ParameterError("bucket_MiB of strategies.bucketed", "above 0", 0, "'wait-free' sends layer by layer")
    for name, overlap, other in (("wait-free", True, "no-overlap"), ("no-overlap", False, "wait-free")):
        if name in strategies and strategies[name].overlap != overlap:
            got, remedy = str(not overlap).lower(), f"what does so is called {other!r}"
            raise ParameterError(f"overlap of strategies.{name}", str(overlap).lower(), got, remedy)


_FRAMEWORK = Table(
    Field("name", Text(), "name to refer to it, in lower case; its overheads are looked up by it"),
    Field("aliases", ListOf(Text()), "other names, in lower case", ()),
    *_DOES,
    Field("switches", MapOf(_SWITCH, "[a-z][a-z0-9.-]*"), "what a user may turn on, by name", {}),
    Field(
        "versions",
        MapOf(_VERSION, r"\d+(\.\d+)*"),
        "what older versions did otherwise, by the first numbers of the version",
        {},
    ),
    Field("source", Text(), "where this comes from", ""),
    Field("sources", MapOf(Text(), choices=_WITH_SOURCE), "where values of single keys come from, by key", {}),
    make=_framework,
)
FRAMEWORK = Kind("framework", "toml", _FRAMEWORK)


def framework_keys(framework: Framework) -> list[tuple[str, str, str, str]]:
    """Return every key that says what a framework does, but for its strategies: key, value, meaning and source."""

    def written(one: Field) -> str:
        value = getattr(framework, one.target)
        if isinstance(value, Mapping):
            value = tuple(f"{key} {item}" for key, item in value.items())
        return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(one.type.write(value)).lower()

    rows, sources = [], dict(framework.sources)
    for name in framework.switched:
        sources |= dict.fromkeys(framework.switches[name].changes, f"switch {name}")
    rows += [(one.name, written(one), one.doc, sources.get(one.name, "")) for one in _DOES if one.name != "strategies"]
    return rows
