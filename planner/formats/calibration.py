"""Calibration files (JSON), and scores of kernel times that were predicted for one device from another (JSON).

Coefficients are a list, because their order is that of the term's features and of the covariance. Standard errors and
ranges that are not finite are not written, nor covariances of more than LARGEST_COVARIANCE coefficients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from planner.domain.calibration import LARGEST_COVARIANCE, Calibration, Entry, MeasuredStep, Transfers, by_precision
from planner.domain.cluster import Node
from planner.domain.provenance import ConformalScore
from planner.errors import InputFileError, ParameterError
from planner.formats.documents import Kind
from planner.formats.fields import Field, FieldError, ListOf, MapOf, Name, Number, OneOf, Table, Text, values_of
from planner.formats.parts import PLAN_TABLE

_ANY = Number(signed=True)
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
    coefficients = [{"feature": name, "value": value} for name, value in entry.coefficients.items()]
    return values_of(entry, coefficients=coefficients, standard_errors=finite, ranges=ranges, covariance=covariance)


Table.of(
    Entry,
    Field("settings", MapOf(OneOf((_ANY, Text(empty=True), ListOf(_ANY)))), "shape settings of the feature map", {}),
    Field("coefficients", ListOf(_COEFFICIENT), "in the order of the features"),
    Field(
        "covariance",
        ListOf(ListOf(_ANY, 1, LARGEST_COVARIANCE), 1, LARGEST_COVARIANCE),
        f"of the coefficients, where there are up to {LARGEST_COVARIANCE}",
        None,
    ),
    make=_entry,
    doc="one term; time = link(features . coefficients)",
    split=_entry_keys,
)
_NODE = Table.of(Node)
Table.of(ConformalScore, doc="conformal score of predictions of one kind; interval = value * exp(-+ half_width)")
Table.of(
    MeasuredStep,
    Field("configuration", PLAN_TABLE, "plan that was run; sub-batch, tensor degree and precision alone of passes"),
    doc="a plan that was timed",
)


def _calibration(*, warnings: tuple[str, ...], **keys: Any) -> Calibration:
    general, of_precisions = by_precision(warnings)
    return Calibration(**keys, warnings=general, precision_warnings=of_precisions)


_CALIBRATION: Table[Calibration] = Table.of(
    Calibration,
    make=_calibration,
    split=lambda one: values_of(one, warnings=(*one.warnings, *chain(*one.precision_warnings.values()))),
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


TRANSFER = Kind("transfer", "json", Table.of(Transfers))
