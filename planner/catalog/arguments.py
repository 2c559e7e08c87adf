"""What stands behind a name: ``key=value`` joined by commas."""

from __future__ import annotations

import math

from planner.domain.dataset import Dataset
from planner.errors import ParameterError, UnknownNameError

__all__ = ["arguments", "typed_dataset"]


def arguments(text: str, what: str) -> dict[str, str]:
    """Return the values of ``key=value,...`` by key; ``what`` names the option in errors."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and key and value):
            raise ParameterError(what, "key=value", part)
        if key in found:
            raise ParameterError(what, "given once", key)
        found[key] = value
    return found


def typed_dataset(text: str) -> Dataset:
    """Return the data set of ``samples=N,bytes_per_sample=B``."""
    given = arguments(text, "--dataset")
    rule = "samples=N,bytes_per_sample=B with numbers above 0"
    known = ("samples", "bytes_per_sample")
    for key in given:
        if key not in known:
            raise UnknownNameError("key of --dataset", key, known)
    missing = [key for key in known if key not in given]
    if missing:
        raise ParameterError("--dataset", rule, text, f"{missing[0]} is missing")
    try:
        samples, size = int(given["samples"]), float(given["bytes_per_sample"])
    except ValueError:
        raise ParameterError("--dataset", rule, text) from None
    if not 0 < size < math.inf:
        raise ParameterError("--dataset", rule, text)
    return Dataset(text, samples, size, "as given")
