"""A prediction in full: figures, terms, where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.domain.citation import Citation
from planner.domain.conformal import PREDICTION_KINDS, PredictionKind
from planner.domain.prediction import LOOKUPS, Prediction
from planner.domain.request import Sourced, Subject
from planner.report import parts
from planner.report.blocks import Block, Line, Pairs, heading
from planner.units import format_duration

__all__ = ["figures", "fusion_lines", "lookups", "place", "prediction_details", "prediction_rest"]

LEAST_GAIN = 0.001
"""Share of a step from which a gain is told."""


def place(subject: Subject) -> str:
    """Return network, cluster and scenario in words."""
    what_if = f", scenario {subject.scenario}" if subject.scenario else ""
    return f"{subject.network} on {subject.cluster}{what_if}"


def prediction_details(prediction: Prediction, subject: Subject, citations: Iterable[Citation]) -> Iterator[Block]:
    """Yield figures, terms and origins of one prediction."""
    yield figures(prediction, subject)
    yield heading("Terms")
    yield parts.terms(prediction.terms, prediction.bottleneck, subject.device)
    yield from lookups([prediction])
    words = parts.precision_words(prediction.configuration.precision, subject.settings.framework)
    if words:
        yield Line(words)
    yield heading(parts.ORIGINS_HEADING)
    yield parts.origins(prediction.terms, citations)


def prediction_rest(
    rows: Sequence[tuple[Subject, Prediction]],
    request: Mapping[str, Sourced[object]],
    citations: Iterable[Citation],
) -> Iterator[Block]:
    """Yield what a short answer leaves out: every figure of each prediction, and the values they rest on."""
    all_citations = list(citations)
    for subject, one in rows:
        yield heading(f"{place(subject)}: {parts.configuration_words(one.configuration, subject.device)}")
        yield from prediction_details(one, subject, all_citations)
    if request:
        yield heading("Values and their sources")
        yield from parts.request_values(request)


def fusion_lines(rows: Sequence[tuple[Subject, Prediction]], gains: Sequence[float | None]) -> Iterator[Line]:
    """Yield how much of a step the best messages of gradients would save; nothing where they would save nothing."""
    for at, ((_, one), gain) in enumerate(zip(rows, gains, strict=True), 1):
        share = 0.0 if gain is None else gain / one.iteration_s.value
        if gain is not None and share >= LEAST_GAIN:
            step = f"step {at}" if len(rows) > 1 else "a step"
            saved = f"{format_duration(gain)} of {step} ({share:.1%})"
            yield Line(f"With --strategy best-fusion, gradients in the fastest buckets, it would save {saved}.")


def figures(prediction: Prediction, subject: Subject) -> Pairs:
    """Return every figure with its interval, by name; a time never without mini-batch and staleness."""
    rows = _figures(prediction, subject)
    first_is_alike = prediction.first_epoch_s == prediction.epoch_s
    return Pairs([row for row in rows if row[1] != "-" and not (row[0] == "first epoch" and first_is_alike)])


def _figures(prediction: Prediction, subject: Subject) -> list[tuple[str, str]]:
    cost = prediction.epoch_usd(subject.usd_per_gpu_hour)
    is_async = prediction.configuration.mode == "async"
    return [
        ("epoch", parts.duration(prediction.epoch_s)),
        ("first epoch", parts.duration(prediction.first_epoch_s)),
        ("cost of an epoch", parts.figure(cost, "USD") if cost else "-"),
        (
            f"{subject.device} thread's period" if is_async else "iteration",
            parts.duration(prediction.iteration_s),
        ),
        ("update thread's period", parts.duration(prediction.update_s)),
        ("speed", parts.figure(prediction.samples_per_s, "samples/s")),
        ("utilization", parts.utilization(prediction)),
        ("stages start with", parts.stages(prediction)),
        ("stages hold", parts.stage_layers(prediction)),
        ("ranks numbered", ", ".join(prediction.rank_order) or "-"),
        ("mini-batch", _mini_batch(prediction)),
        ("staleness", _staleness(prediction)),
        ("memory", parts.memory_line(prediction.memory_bytes, subject.device)),
        ("bottleneck", parts.term_words(prediction.bottleneck)),
        ("intervals", _intervals(prediction)),
    ]


def lookups(predictions: Sequence[Prediction]) -> Iterator[Line]:
    """Yield how the kernel time was found, by share: from the least to the most of several; nothing without kernels."""
    shares_of_each = [one.kernel_shares for one in predictions if any(one.kernel_shares.values())]
    shares_in_words = {words: [shares[lookup] for shares in shares_of_each] for lookup, words in LOOKUPS.items()}
    words = [f"{_span(shares)} {by}" for by, shares in shares_in_words.items() if any(shares)]
    if words:
        yield Line(f"Kernel time: {', '.join(words)}")


def _span(shares: Sequence[float]) -> str:
    """Return a share, or the least and the most of several where they differ; a little is never none."""
    low, high = (_percent(end(shares)) for end in (min, max))
    return high if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 or not share else "<0.1%"


def _intervals(prediction: Prediction) -> str:
    """Return what the intervals of times rest on; a dash where there are none."""
    words = BASES.get(prediction.iteration_s.interval_basis)
    if words is None:
        return "-"
    kind = PREDICTION_KINDS.get(prediction.kind)
    if prediction.iteration_s.interval_basis != "conformal" or kind is None:
        return f"90 %, {words}"
    return f"90 %, {words} {_kind_in_words(kind)}"


def _kind_in_words(kind: PredictionKind) -> str:
    outside = ", outside of what was seen" if kind.is_outside else ""
    return f"{PLACES_IN_WORDS[kind.place]}, {EVIDENCE_IN_WORDS[kind.evidence]}{outside}"


def _mini_batch(prediction: Prediction) -> str:
    batch = prediction.mini_batch
    if not batch.std:
        return f"{parts.mini_batch(batch)} samples"
    inside = batch.probability_in_window
    chance = f"; {inside:.0%} of updates inside the window" if inside is not None else ""
    return f"{parts.mini_batch(batch)} samples, 90 % between {batch.p05:.4g} and {batch.p95:.4g}{chance}"


def _staleness(prediction: Prediction) -> str:
    staleness = prediction.staleness
    if not staleness.mean:
        return "0 updates"
    chances = ", ".join(f"{value}: {chance:.0%}" for value, chance in staleness.pmf.items() if chance >= 0.005)
    return f"{staleness.mean:.3g} updates on average" + (f" ({chances})" if chances else "")


BASES = {
    "assumed": "in part by stated assumptions",
    "covariance": "by the errors of the fits",
    "conformal": "by what predictions of measured runs missed (conformal):",
}
"""Basis of intervals -> what they rest on."""
PLACES_IN_WORDS = {"one_gpu": "one GPU", "one_node": "one node", "several_nodes": "several nodes"}
EVIDENCE_IN_WORDS = {
    "measured": "kernels measured",
    "scaled": "kernels scaled from another GPU or precision",
    "specified": "kernels by the data sheet",
}
