"""JSON Schemas of all kinds of documents, emitted from the declarations that read and write them.

``python -m planner.formats.schemas FOLDER`` writes them; those that are shipped stand in ``planner/_bundled/schemas``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import UnknownNameError
from planner.formats.calibration import CALIBRATION, TRANSFER
from planner.formats.cluster import ACCELERATOR, CLUSTER
from planner.formats.documents import Kind, dump_json, write_file
from planner.formats.framework import FRAMEWORK
from planner.formats.network import DATASET, NAMES, NETWORK, NETWORK_WORK
from planner.formats.parts import REQUEST, SETTINGS
from planner.formats.prediction import PREDICTION, PREDICTIONS
from planner.formats.suggestion import SUGGESTION, SUGGESTIONS
from planner.formats.summaries import (
    BRIEF,
    BRIEFS,
    DOCTOR,
    ERROR,
    INFERENCE,
    SWEEP,
    VALIDATION,
    VERIFICATION,
    WHY_NOT,
)

__all__ = ["KINDS", "schema", "write_schemas"]

_ALL_KINDS: tuple[Kind[Any], ...] = (
    ACCELERATOR, BRIEF, BRIEFS, CALIBRATION, CLUSTER, DATASET, DOCTOR, ERROR, FRAMEWORK, INFERENCE, NAMES, NETWORK,
    NETWORK_WORK, PREDICTION, PREDICTIONS, REQUEST, SETTINGS, SUGGESTION, SUGGESTIONS, SWEEP, TRANSFER, VALIDATION,
    VERIFICATION, WHY_NOT,
)  # fmt: skip
KINDS: Mapping[str, Kind[Any]] = {kind.name: kind for kind in _ALL_KINDS}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document, or raise UnknownNameError."""
    if kind not in KINDS:
        raise UnknownNameError("kind of document", kind, KINDS)
    return KINDS[kind].schema()


def write_schemas(folder: Path) -> None:
    """Write the schema of every kind into a folder as ``<kind>.json``, over older ones."""
    for kind in KINDS:
        write_file(folder / f"{kind}.json", dump_json(schema(kind)), force=True)


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
