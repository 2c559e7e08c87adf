"""Calibration files (JSON), and scores of kernel times that were predicted for one device from another (JSON).

Coefficients are a list, because their order is that of the term's features and of the covariance. Standard errors and
ranges that are not finite are not written, nor covariances of more than LARGEST_COVARIANCE coefficients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from planner.domain.calibration import (
    ANY_UNITS,
    OF_PASSES,
    OF_STEP,
    ORIGINS,
    RELATIONS,
    SCOPES,
    UNITS,
    UNITS_OF_PAIRS,
    Calibration,
    Entry,
    MeasuredStep,
    OwnPoints,
    PrecisionScore,
    Transfers,
    TransferScore,
    by_precision,
)
from planner.domain.cluster import Accelerator, Node
from planner.domain.configuration import MODES
from planner.domain.provenance import PREDICTION_KINDS, ConformalScore
from planner.errors import InputFileError, ParameterError
from planner.formats.cluster import accelerator_fields
from planner.formats.documents import Kind
from planner.formats.fields import Field, FieldError, ListOf, MapOf, Name, Nullable, Number, OneOf, Table, Text, Whole
from planner.formats.parts import PLAN_TABLE

__all__ = ["CALIBRATION", "LARGEST_COVARIANCE", "TRANSFER", "parse_node", "text_of_node"]


LARGEST_COVARIANCE = 64
"""Coefficients up to which an entry holds their covariance; beyond, the file would be mostly that."""

_ANY = Number(signed=True)
_POSITIVE_OR_ZERO = Number()
_COEFFICIENT: Table[dict[str, Any]] = Table(
    Field("feature", Name(), "name of the feature"), Field("value", _ANY, "coefficient, in SI units")
)


def _entry(coefficients: tuple[dict[str, Any], ...], **keys: Any) -> Entry:
    if keys["library"] == "cells":  # of calibrations that were made before measured_steps held such runs
        remedy = "runs of plans are measured_steps now: make them again by planner calibrate --plan"
        raise ParameterError("library", "of fitted terms", keys["library"], remedy)
    names = [row["feature"] for row in coefficients]
    if len(set(names)) != len(names):
        raise ParameterError("coefficients", "of different features", ", ".join(names))
    covariance = keys["covariance"]
    if covariance is not None and {len(covariance), *map(len, covariance)} != {len(names)}:
        raise ParameterError("covariance", f"{len(names)} rows of {len(names)} numbers", f"{len(covariance)} rows")
    for low, high in keys["ranges"].values():
        if low > high:
            raise ParameterError("range", "from the least to the most", (_plain(low), _plain(high)))
    return Entry(coefficients={row["feature"]: row["value"] for row in coefficients}, **keys)


def _plain(number: float) -> float:
    """Return a whole number as one: most files give them so."""
    return int(number) if number.is_integer() else number


def _entry_keys(entry: Entry) -> Mapping[str, Any]:
    finite = {name: error for name, error in entry.standard_errors.items() if math.isfinite(error)}
    ranges = {name: ends for name, ends in entry.ranges.items() if all(map(math.isfinite, ends))}
    covariance = entry.covariance
    if covariance is not None:
        keep = 0 < len(covariance) <= LARGEST_COVARIANCE and all(math.isfinite(x) for row in covariance for x in row)
        covariance = covariance if keep else None
    for name, value in entry.coefficients.items():
        if not math.isfinite(value):
            raise ParameterError(f"coefficient {name} of {entry.kind}", "a finite number", value)
    return {f.name: getattr(entry, f.name) for f in fields(entry)} | {
        "coefficients": [{"feature": name, "value": value} for name, value in entry.coefficients.items()],
        "standard_errors": finite,
        "ranges": ranges,
        "covariance": covariance,
    }


_ENTRY = Table(
    Field("scope", Text(SCOPES), "what the entry belongs to"),
    Field("kind", Name(), "kernel kind, framework, or operation"),
    Field("direction", Name(empty=True), "direction of a kernel", ""),
    Field("precision", Name(empty=True), "precision, or any", ""),
    Field("library", Name(empty=True), "library that was measured", ""),
    Field("term", Name(), "registered name of the feature map"),
    Field("settings", MapOf(OneOf((_ANY, Text(empty=True), ListOf(_ANY)))), "shape settings of the feature map", {}),
    Field("coefficients", ListOf(_COEFFICIENT), "in the order of the features"),
    Field("standard_errors", MapOf(_POSITIVE_OR_ZERO), "of the coefficients that were fitted", {}),
    Field(
        "covariance",
        ListOf(ListOf(_ANY, 1, LARGEST_COVARIANCE), 1, LARGEST_COVARIANCE),
        f"of the coefficients, where there are up to {LARGEST_COVARIANCE}",
        None,
    ),
    Field("fixed", ListOf(Name()), "features whose coefficient was stated, not fitted", ()),
    Field("ranges", MapOf(ListOf(_ANY, 2, 2)), "least and most of each feature in the fit", {}),
    Field("samples", Whole(least=0), "rows of the fit", 0),
    Field("error", _POSITIVE_OR_ZERO, "mean absolute relative error on the rows of the fit", None),
    Field("held_out_error", _POSITIVE_OR_ZERO, "the same on rows left out", None),
    Field("held_out_by", Text(empty=True), "what was left out at a time: row, shape, group, network", ""),
    Field("worst_error", _POSITIVE_OR_ZERO, "largest absolute relative error on rows left out", None),
    Field("condition_number", Nullable(_POSITIVE_OR_ZERO), "of the column-scaled design; null: not finite", None),
    Field("estimator", Text(empty=True), "how the coefficients were found", ""),
    Field("origin", Text(ORIGINS), "where the coefficients come from", "measured"),
    Field("source", Text(empty=True), "citation, or the machine", ""),
    Field("notes", Text(empty=True), "what a reader should know", ""),
    Field("worst_point", Text(empty=True), "row whose error is the largest; files of before leave it out", ""),
    Field("mode", Text(MODES), "of overheads: mode of the runs that they were fitted to; absent: any", ""),
    Field("sum_error", _POSITIVE_OR_ZERO, "error of sums over many shapes; absent: that of one", None),
    make=_entry,
    doc="one term; time = link(features . coefficients)",
    split=_entry_keys,
)


_NODE = Table(
    Field("gpus", Whole(most=4096), "devices of the node"),
    Field("accelerator", Table(*accelerator_fields(Field("name", Name(), "its name")), make=Accelerator), "the device"),
    Field("host_memory_GiB", Number("GiB", above=True), "memory of the host", None, "host_memory_bytes"),
    Field("cpu_threads", Whole(), "hardware threads of the host", None),
    make=Node,
)
_SCORE = Table(
    Field("half_width", _POSITIVE_OR_ZERO, "of log(predicted / measured); absent: too few groups", None),
    Field("level", Number("share"), "share of the runs of a new group that is covered"),
    Field("groups", Whole(least=0), "groups of measured runs that it was calibrated on"),
    Field("rows", Whole(least=0), "measured runs that it was calibrated on"),
    Field("reason", Text(empty=True), "why there is no score", ""),
    make=ConformalScore,
    doc="conformal score of predictions of one kind; interval = value * exp(-+ half_width)",
)


_MEASURED_STEP = Table(
    Field("network", Name(), "network that was trained"),
    Field("cluster", Name(), "cluster that it was trained on; absent: passes, which are of no cluster", ""),
    Field("framework", Name(), "training framework"),
    Field("configuration", PLAN_TABLE, "plan that was run; sub-batch, tensor degree and precision alone of passes"),
    Field("factor", Number(above=True), "measured over predicted time, geometric mean of the runs"),
    Field("runs", Whole(), "measured runs"),
    Field("of", Text((OF_STEP, OF_PASSES)), "what was timed: a whole step, or passes of one device", OF_STEP),
    make=MeasuredStep,
    doc="a plan that was timed",
)


def _calibration(*, warnings: tuple[str, ...], **keys: Any) -> Calibration:
    general, of_precisions = by_precision(warnings)
    return Calibration(**keys, warnings=general, precision_warnings=of_precisions)


def _keys(calibration: Calibration) -> dict[str, Any]:
    keys = {one.name: getattr(calibration, one.name) for one in fields(Calibration)}
    of_precisions = (sentence for sentences in keys.pop("precision_warnings").values() for sentence in sentences)
    return keys | {"warnings": (*calibration.warnings, *of_precisions)}


_CALIBRATION = Table(
    Field("name", Name(), "name to refer to it"),
    Field("accelerator", Name(), "accelerator that the kernel entries belong to"),
    Field("cluster", Nullable(Name()), "cluster that collectives, storage and host entries belong to", None),
    Field("node", _NODE, "node it was measured on; the cluster 'local' is one such node", None),
    Field("entries", ListOf(_ENTRY), "terms"),
    Field("origin", Text(ORIGINS), "where the whole comes from; an entry may differ"),
    Field("source", Text(empty=True), "citation, or the machine", ""),
    Field("date", Text(empty=True), "ISO date of the measurement or publication", ""),
    Field("environment", MapOf(Text(empty=True)), "library versions, threads, clocks", {}),
    Field("seen", ListOf(Text()), "groups that took part in a fit", ()),
    Field("warnings", ListOf(Text()), "what a reader should know", ()),
    Field("input_warnings", ListOf(Text()), "the same about input, said where input is priced", ()),
    Field("conformal", MapOf(_SCORE, choices=tuple(PREDICTION_KINDS)), "conformal scores by kind of prediction", {}),
    Field("measured_steps", ListOf(_MEASURED_STEP), "plans that were timed", ()),
    make=_calibration,
    split=_keys,
)
CALIBRATION = Kind("calibration", "json", _CALIBRATION)


def text_of_node(node: Node) -> str:
    """Return a node in one line, as the key ``node`` of a calibration holds it."""
    return json.dumps(_NODE.write(node), sort_keys=True)


def parse_node(text: str, path: str) -> Node:
    """Return the first node of a text of one or several, separated by semicolons, or raise InputFileError."""
    try:
        keys, _ = json.JSONDecoder().raw_decode(text)
        return _NODE.read(keys, "node")
    except json.JSONDecodeError as error:
        raise InputFileError(path, f"node must be a table in JSON, got: {error.msg}", "node") from None
    except FieldError as error:
        raise InputFileError(path, error.problem, error.place) from None


_ERROR_FIELDS = (
    Field("rows", Whole(), "measured kernel times that were predicted"),
    Field("mean", Number(), "mean over the pairs of the mean of |predicted / measured - 1|"),
    Field("median", Number(), "mean over the pairs of the median of it"),
    Field("p90", Number(), "mean over the pairs of the 90th percentile of it"),
)
_TRANSFER_SCORE = Table(
    Field("relation", Text(RELATIONS), "what the two devices have in common"),
    Field("units", Text(UNITS_OF_PAIRS), "what multiplies on both; any: nothing, or not told apart", ANY_UNITS),
    Field("kind", Text(), "kernel kind"),
    Field("precision", Text(), "precision, or any"),
    Field("pairs", Whole(), "pairs of devices and directions, which weigh the same"),
    *_ERROR_FIELDS,
    Field("bias", Number(), "mean over the pairs of |mean of predicted / measured - 1|"),
    make=TransferScore,
)
_OWN = Table(
    Field("units", Text((*UNITS, ANY_UNITS)), "what multiplies; any: nothing, or not told apart", ANY_UNITS),
    Field("kind", Text(), "kernel kind"),
    Field("precision", Text(), "precision, or any"),
    Field("devices", Whole(), "devices and directions, which weigh the same"),
    Field("transfer", Number(), "mean error of the best transfer"),
    Field("ratio", Number(), "of that times one factor from the device's own points"),
    Field("own", Number(), "of a fit to these points alone"),
    Field("all_own", Number(), "of a fit to all rows of the device"),
    make=OwnPoints,
)
_PRECISION = Table(
    Field("units", Text(UNITS), "what multiplies in both precisions"),
    Field("kind", Text(), "kernel kind"),
    Field("precision", Text(), "the precision that was predicted"),
    Field("pairs", Whole(), "devices, directions and precisions predicted from, which weigh the same"),
    *_ERROR_FIELDS,
    Field("sheet", Number(), "mean error of the specification on the same rows"),
    make=PrecisionScore,
)
_TRANSFER = Table(
    Field("scores", ListOf(_TRANSFER_SCORE), "one for relation, units, kind and precision"),
    Field("points", Whole(), "kernels of the device itself that own_points are from"),
    Field("own_points", ListOf(_OWN), "one for units, kind and precision"),
    Field("precisions", ListOf(_PRECISION), "one for units, kind and precision: derived from another", ()),
    make=Transfers,
)
TRANSFER = Kind("transfer", "json", _TRANSFER)
