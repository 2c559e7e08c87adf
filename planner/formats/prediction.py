"""Predictions as documents (JSON), and what a configuration takes as tables: figures, terms and memory.

No figure stands twice. Where an end of an interval, a share or a distribution follows from other keys it is left out,
and the key's description says how it follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from planner.domain.axes import RANK_ORDER
from planner.domain.configuration import Configuration
from planner.domain.prediction import (
    LOOKUPS,
    Citation,
    LayersOfStage,
    MiniBatch,
    PlanWarning,
    Prediction,
    Quantity,
    SharedLayers,
    Staleness,
    Term,
)
from planner.domain.request import Subject
from planner.domain.split import MEMORY_KINDS
from planner.formats.documents import Kind
from planner.formats.fields import Field, FieldError, ListOf, Number, Table, Text, Whole, record_of, values_of
from planner.formats.parts import (
    CITATIONS,
    CONFIGURATION_TABLE,
    LARGEST_PRODUCT,
    SUBJECT_TABLE,
    citation_keys,
    configuration_keys,
    subject_keys,
    subject_of,
    warning_keys,
    warning_table,
    warnings_of,
)

FITS_DIGITS = 4
SPLIT_KINDS = MEMORY_KINDS[6:]
"""Kinds of memory of a device, those of split plans last; ``host``, of a rank in its host's memory, is in no total."""
THREADS = {"sync": "step", "async": "gpu"}
"""Mode -> thread that computes."""
NO_STALENESS = Staleness(0.0, 0.0, {0: 1.0})
EQUAL_ENDS = 1e-9
"""Relative difference up to which an end of an interval is the one that follows."""
_BYTES = Whole(least=0, most=LARGEST_PRODUCT)
QUANTITY = Table.of(Quantity, make=dict, title="quantity")
_STAGE = Table.of(
    LayersOfStage, Field("stages", Whole(), "stages in a row that hold this; absent: 1", 1), make=dict,
    doc="what stages of a pipeline hold", title="layers_of_stages",
)  # fmt: skip
STAGE_LAYERS = Field(
    "stage_layers", ListOf(_STAGE), "what stages hold, in order, where that is chosen; absent: all alike", ()
)
RANK_ORDER_FIELD = Field(
    "rank_order",
    ListOf(Text(RANK_ORDER)),
    "how ranks are numbered, innermost first, where that is chosen for the plan; absent: as the subject says",
    (),
)
_TERM = Table.of(
    Term,
    Field("source", Whole(least=0), "where its coefficients come from: place in sources, from 0; absent: 0", 0),
    make=dict,
    title="term",
)
SOURCES = Field(
    "sources",
    ListOf(
        Table(
            Field("origin", Text(), "measured, published, ...; several joined by +"),
            Field("calibration", Text(), "names of calibrations, joined by commas", ""),
            title="source",
        )
    ),
    "where terms come from, each once",
)
Table.of(SharedLayers, title="shared_layers")
FIGURES = Table.of(
    Prediction,
    Field(
        "epoch_usd",
        QUANTITY,
        "epoch_s x gpus x usd_per_gpu_hour / 3600, ends too; absent without a price or data set",
        None,
    ),
    Field(
        "tokens_per_s",
        QUANTITY,
        "samples_per_s x tokens_per_sample of the subject, ends too; absent: no language model",
        None,
    ),
    STAGE_LAYERS,
    RANK_ORDER_FIELD,
    Field("staleness", Table.of(Staleness, make=dict), "distribution of the staleness; absent: none", None),
    Field(
        "memory_bytes",
        Table(
            *(Field(name, _BYTES, f"{name} on one device", 0) for name in MEMORY_KINDS),
            Field("total", _BYTES, "all that is needed on one device"),
            Field("low", _BYTES, "lower end of the central 90% interval of the total", None),
            Field("high", _BYTES, "upper end", None),
            Field("fits", Number("share"), "probability that the memory of the device suffices", None),
            Field("capacity", _BYTES, "what one device has; absent: memory_bytes of the subject", None),
        ),
        "memory of one device, by kind; absent kinds are 0",
    ),
    Field("terms", ListOf(_TERM), "parts of the periods that take time"),
    Field(
        "kernel_shares",
        Table(*(Field(name, Number("share"), words, 0.0) for name, words in LOOKUPS.items())),
        "shares of the kernel time of a step by how it was found; absent ones are 0",
        None,
    ),
    make=dict,
    doc="what it takes",
    title="figures",
)


def stage_layers_keys(prediction: Prediction) -> tuple[dict[str, Any], ...]:
    """Return the keys of what stages hold, those in a row that are equal once; none: it is not chosen."""
    return tuple(asdict(one) | {"stages": len(list(equal))} for one, equal in groupby(prediction.stage_layers))


def stage_layers_of(keys: Mapping[str, Any]) -> tuple[LayersOfStage, ...]:
    """Return what stages hold; the inverse."""
    rows = [
        (one["stages"], LayersOfStage(one["layers"], one["again"], one["recompute"])) for one in keys["stage_layers"]
    ]
    return tuple(stage for times, stage in rows for _ in range(times))


class Shared:
    """What the figures of a document share: the memory of a device, and where terms come from, gathered on the way."""

    def __init__(self, predictions: Iterable[Prediction]) -> None:
        capacities = (one.memory_bytes.get("capacity") for one in predictions)
        self.memory_bytes = next((round(capacity) for capacity in capacities if capacity is not None), None)
        self._places: dict[tuple[str, str], int] = {}

    def place(self, term: Term) -> int:
        """Return the place of where a term comes from."""
        return self._places.setdefault((term.origin, term.calibration), len(self._places))

    def sources(self) -> list[dict[str, Any]]:
        """Return the keys of where the terms come from, in order of place."""
        return [{"origin": origin, "calibration": calibration} for origin, calibration in self._places]


def figures_keys(prediction: Prediction, subject: Subject, inside: float | None, shared: Shared) -> dict[str, Any]:
    """Return the keys of what a prediction's configuration takes.

    ``inside``: probability that a mini-batch which is not random lies in the window; None without a target.
    """
    p, lead, c = prediction, prediction.iteration_s, prediction.configuration
    cost, first = p.epoch_usd(subject.usd_per_gpu_hour), p.first_epoch_s
    is_exact = c.mode == "sync" and p.mini_batch == _exactly(c.samples_per_update, inside)
    sizes = {kind: round(size) for kind, size in p.memory_bytes.items()}
    if sizes.get("capacity") == shared.memory_bytes:
        sizes.pop("capacity", None)
    std_follows = _same(p.staleness.std, _std(p.staleness.mean, p.staleness.pmf))
    terms = [
        values_of(
            one,
            thread=None if one.thread == THREADS[c.mode] else one.thread,
            exposed_seconds=None if one.exposed_seconds == one.seconds else one.exposed_seconds,
            source=shared.place(one),
        )
        for one in p.terms
        if one.seconds or one.exposed_seconds
    ]
    return values_of(p) | {
        "iteration_s": _quantity_keys(lead, replace(lead, low=None, high=None)),
        "update_s": p.update_s and _quantity_keys(p.update_s, lead),
        "epoch_s": p.epoch_s and _quantity_keys(p.epoch_s, lead),
        "first_epoch_s": None if first in (None, p.epoch_s) else _quantity_keys(first, lead),
        "epoch_usd": cost and {"value": cost.value},
        "samples_per_s": _quantity_keys(p.samples_per_s, lead, inverse=True),
        "tokens_per_s": {"value": p.samples_per_s.value * subject.tokens} if subject.tokens else None,
        "hfu": None if p.hfu == p.mfu else p.hfu,
        "stage_layers": stage_layers_keys(p),
        "mini_batch": None if is_exact else p.mini_batch,
        "staleness": None
        if p.staleness == NO_STALENESS
        else values_of(p.staleness, **({"std": None} if std_follows else {})),
        "memory_bytes": sizes | {"fits": None if p.fits is None else round(p.fits, FITS_DIGITS)},
        "terms": terms,
        "kernel_shares": p.kernel_shares if any(p.kernel_shares.values()) else None,
    }


def prediction_from(
    keys: Mapping[str, Any],
    configuration: Configuration,
    warnings: tuple[PlanWarning, ...],
    inside: float | None,
    document: Mapping[str, Any],
) -> Prediction:
    """Return the prediction of a configuration; the inverse of ``figures_keys``.

    ``document``: its keys ``subject`` and ``sources``. FieldError where an asynchronous prediction does not tell
    its mini-batch, or a term names no source.
    """
    lead = _quantity_of(keys["iteration_s"], None)
    update_s, epoch_s, first = (
        None if keys[key] is None else _quantity_of(keys[key], lead) for key in ("update_s", "epoch_s", "first_epoch_s")
    )
    own = THREADS[configuration.mode]
    if update_s is None and any(term["thread"] == "update" for term in keys["terms"]):
        raise FieldError("update_s", "key must be given beside terms of the thread update, got nothing")
    if keys["mini_batch"] is None and configuration.mode == "async":
        raise FieldError("mini_batch", "key must be given of an asynchronous configuration, got nothing")
    periods = dict.fromkeys(("step", "gpu"), lead.value) | {"update": update_s.value if update_s else 0.0}
    capacity = keys["memory_bytes"]["capacity"]
    capacity = document["subject"]["memory_bytes"] if capacity is None else capacity
    sizes = {
        kind: size
        for kind, size in {**keys["memory_bytes"], "capacity": capacity}.items()
        if size is not None and kind != "fits" and (size or kind not in SPLIT_KINDS)
    }
    staleness = NO_STALENESS
    if random := keys["staleness"]:
        pmf = dict(sorted((int(updates), chance) for updates, chance in random["pmf"].items()))
        std = _std(random["mean"], pmf) if random["std"] is None else random["std"]
        staleness = Staleness(random["mean"], std, pmf)
    return record_of(
        Prediction,
        keys,
        configuration=configuration,
        warnings=warnings,
        iteration_s=lead,
        update_s=update_s,
        epoch_s=epoch_s,
        first_epoch_s=first or epoch_s,
        samples_per_s=_quantity_of(keys["samples_per_s"], lead, inverse=True),
        hfu=keys["mfu"] if keys["hfu"] is None else keys["hfu"],
        stage_layers=stage_layers_of(keys),
        mini_batch=keys["mini_batch"] or _exactly(configuration.samples_per_update, inside),
        staleness=staleness,
        memory_bytes=sizes,
        terms=tuple(
            _term_of(term | {"thread": term["thread"] or own}, periods, document["sources"]) for term in keys["terms"]
        ),
        kernel_shares=keys["kernel_shares"] or dict.fromkeys(LOOKUPS, 0.0),
        doubt=dict(sorted(keys["doubt"].items(), key=lambda pair: -pair[1])),
    )


def _quantity_keys(quantity: Quantity, lead: Quantity, *, inverse: bool = False) -> dict[str, Any]:
    """Return the keys of a quantity: without ends where they follow from those of ``lead``; both ends, or neither."""
    value, ends = quantity.value, (quantity.low, quantity.high)
    both = all(end is not None and math.isfinite(end) for end in (value, *ends))
    low, high, basis = (*ends, quantity.interval_basis) if both else (None, None, "none")
    after = _following(value, lead, inverse=inverse)
    if basis == after.interval_basis and _same(low, after.low) and _same(high, after.high):
        return {"value": value}
    return {"value": value, "low": low, "high": high, "interval_basis": basis}


def _following(value: float, lead: Quantity, *, inverse: bool) -> Quantity:
    """Return a value with the interval that follows from that of ``lead``, if it has one."""
    if lead.low is None or lead.high is None or not lead.value or (inverse and not (lead.low and lead.high)):
        return Quantity(value)
    if inverse:
        return Quantity(value, value * lead.value / lead.high, value * lead.value / lead.low, lead.interval_basis)
    return Quantity(value, value * lead.low / lead.value, value * lead.high / lead.value, lead.interval_basis)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=EQUAL_ENDS)


def _quantity_of(keys: Mapping[str, Any], lead: Quantity | None, *, inverse: bool = False) -> Quantity:
    value, low, high, basis = keys["value"], keys["low"], keys["high"], keys["interval_basis"]
    if low is not None and high is not None:
        if not low * (1 - EQUAL_ENDS) <= value <= high * (1 + EQUAL_ENDS):
            raise FieldError("low and high", f"values must hold {value:g} between them, got {low:g} and {high:g}")
        return Quantity(value, low, high, basis or "none")
    return Quantity(value) if basis or lead is None else _following(value, lead, inverse=inverse)


def _exactly(samples: int, inside: float | None) -> MiniBatch:
    size = float(samples)
    return MiniBatch(size, 0.0, size, size, inside)


def _std(mean: float, pmf: Mapping[int, float]) -> float:
    return math.sqrt(sum(chance * (updates - mean) ** 2 for updates, chance in pmf.items()))


def _term_of(keys: Mapping[str, Any], periods: Mapping[str, float], sources: Sequence[Mapping[str, str]]) -> Term:
    if keys["source"] >= len(sources):
        rule = f"below {len(sources)}, as many as sources has"
        raise FieldError(f"source of term {keys['name']}", f"value must be {rule}, got {keys['source']}")
    exposed_s, period_s = keys["exposed_seconds"], periods[keys["thread"]]
    exposed_s = keys["seconds"] if exposed_s is None else exposed_s
    source = sources[keys["source"]]
    return record_of(
        Term, keys, exposed_seconds=exposed_s, share=exposed_s / period_s if period_s else 0.0,
        origins=tuple(source["origin"].split("+")),
        calibrations=tuple(filter(None, source["calibration"].split(", "))),
    )  # fmt: skip


_CONFIGURATION = Field("configuration", CONFIGURATION_TABLE, "what is predicted")
_OWN_SUBJECT: Table[Any] = Table(SUBJECT_TABLE, make=dict, optional=True, title="subject_of_one")
"""The subject of one prediction; its keys replace those that all predictions share."""
_ONE = Table(
    _CONFIGURATION,
    FIGURES,
    Field("subject", _OWN_SUBJECT, "keys of the subject that are not those of all predictions", None),
    title="prediction",
)
_PREDICTION = Table(
    Field("subject", SUBJECT_TABLE, "what is predicted, by name"), _CONFIGURATION, FIGURES, SOURCES, CITATIONS,
    Field("warnings", ListOf(warning_table()), "what a reader should know", ()),
)  # fmt: skip
PREDICTION = Kind("prediction", "json", _PREDICTION)
_PREDICTIONS = Table(
    Field("subject", _OWN_SUBJECT, "what is predicted, by name, as far as all predictions share it"),
    Field("predictions", ListOf(_ONE), "in the order of the options"),
    SOURCES,
    CITATIONS,
    Field(
        "warnings",
        ListOf(warning_table(predictions="positions, from 1, of those that it is of; absent: of all")),
        "what a reader should know, each once",
        (),
    ),
)
PREDICTIONS = Kind("predictions", "json", _PREDICTIONS)


def prediction_document(subject: Subject, prediction: Prediction, citations: Sequence[Citation] = ()) -> dict[str, Any]:
    """Return the document of one prediction, with the citations of the calibrations that it rests on."""
    shared = Shared([prediction])
    return PREDICTION.document(
        {
            "subject": subject_keys(subject, shared.memory_bytes),
            **_prediction_keys(subject, prediction, shared),
            "sources": shared.sources(),
            "citations": citation_keys(citations),
            "warnings": warning_keys(prediction.warnings, {}),
        }
    )


def predictions_document(
    predictions: Iterable[tuple[Subject, Prediction]], citations: Sequence[Citation] = ()
) -> dict[str, Any]:
    """Return the document of predictions and what each is about, in their order; at least one."""
    each = list(predictions)
    shared = Shared(one for _, one in each)
    subjects = [subject_keys(subject, shared.memory_bytes) for subject, _ in each]
    alike = {key: value for key, value in subjects[0].items() if all(one.get(key) == value for one in subjects)}
    rows = []
    for (subject, one), about in zip(each, subjects, strict=True):
        own = {key: value for key, value in about.items() if key not in alike}
        rows.append({"subject": own or None, **_prediction_keys(subject, one, shared)})
    return PREDICTIONS.document(
        {
            "subject": alike,
            "predictions": rows,
            "sources": shared.sources(),
            "citations": citation_keys(citations),
            "warnings": warning_keys((), {"predictions": {at: one.warnings for at, (_, one) in enumerate(each, 1)}}),
        }
    )


def prediction_of(keys: Mapping[str, Any]) -> tuple[Subject, Prediction]:
    """Return what the keys of a document say; UsageError or FieldError where no answer can be so."""
    subject = subject_of(keys["subject"], [keys["configuration"]])
    return subject, _prediction_of(keys, warnings_of(keys["warnings"]), keys)


def predictions_of(keys: Mapping[str, Any]) -> list[tuple[Subject, Prediction]]:
    """Return what the keys of a document say, in their order.

    UsageError or FieldError where no answer can be so.
    """
    answers = []
    for at, one in enumerate(keys["predictions"], 1):
        keys_of_subject = _OWN_SUBJECT.write(keys["subject"]) | _OWN_SUBJECT.write(one["subject"] or {})
        about = SUBJECT_TABLE.read(keys_of_subject, f"predictions[{at - 1}].subject")
        warnings = warnings_of(keys["warnings"], "predictions", at)
        prediction = _prediction_of(one, warnings, {**keys, "subject": about})
        answers.append((subject_of(about, [one["configuration"]]), prediction))
    return answers


def _prediction_keys(subject: Subject, prediction: Prediction, shared: Shared) -> dict[str, Any]:
    configuration = configuration_keys(prediction.configuration, subject.settings.framework)
    return figures_keys(prediction, subject, None, shared) | {"configuration": configuration}


def _prediction_of(
    keys: Mapping[str, Any], warnings: tuple[PlanWarning, ...], document: Mapping[str, Any]
) -> Prediction:
    configuration = record_of(Configuration, keys["configuration"])
    return prediction_from(keys, configuration, warnings, None, document)
