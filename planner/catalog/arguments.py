"""What stands behind a name: ``key=value`` joined by commas."""

from __future__ import annotations

import math

from planner.domain.dataset import Dataset
from planner.errors import ParameterError, UnknownNameError

__all__ = ["arguments", "typed_dataset"]


def arguments(text: str, what: str) -> dict[str, str]:
    """Return the values of ``key=value,...`` by key; ``what`` names the option in errors."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and key and value):
            raise ParameterError(what, "key=value", part)
        if key in values:
            raise ParameterError(what, "given once", key)
        values[key] = value
    return values


def typed_dataset(text: str) -> Dataset:
    """Return the data set of ``samples=N,bytes_per_sample=B``."""
    values = arguments(text, "--dataset")
    rule = "samples=N,bytes_per_sample=B with numbers above 0"
    keys = ("samples", "bytes_per_sample")
    for key in values:
        if key not in keys:
            raise UnknownNameError("key of --dataset", key, keys)
    missing = [key for key in keys if key not in values]
    if missing:
        raise ParameterError("--dataset", rule, text, f"{missing[0]} is missing")
    try:
        samples, size = int(values["samples"]), float(values["bytes_per_sample"])
    except ValueError:
        raise ParameterError("--dataset", rule, text) from None
    if not 0 < size < math.inf:
        raise ParameterError("--dataset", rule, text)
    return Dataset(text, samples, size, "as given")
