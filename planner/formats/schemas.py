"""JSON Schemas of all kinds of documents, emitted from the declarations that read and write them.

``python -m planner.formats.schemas FOLDER`` writes them; those that are shipped stand in ``planner/_bundled/schemas``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import named
from planner.formats import calibration, cluster, framework, network, parts, prediction, suggestion, summaries
from planner.formats.documents import Kind, dump_json, write_file

_MODULES = (calibration, cluster, framework, network, parts, prediction, suggestion, summaries)
KINDS: Mapping[str, Kind[Any]] = {
    kind.name: kind for module in _MODULES for kind in vars(module).values() if isinstance(kind, Kind)
}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document, or raise UnknownNameError."""
    return named("kind of document", kind, KINDS).schema()


def write_schemas(folder: Path) -> None:
    """Write the schema of every kind into a folder as ``<kind>.json``, over older ones."""
    for kind in KINDS:
        write_file(folder / f"{kind}.json", dump_json(schema(kind)), force=True)


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
