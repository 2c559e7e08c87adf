"""Write docs/numbers.md: the records of planner/_bundled/numbers.toml.

python -m validation.numbers_page
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.numbers import NUMBERS
from validation.command import finished, parser_of

__all__ = ["PAGE", "main", "page", "records"]

PAGE = Path(__file__).parents[1] / "docs" / "numbers.md"
TEXT = """# Numbers that were chosen

What the code reads from `planner/_bundled/numbers.toml`: numbers that were chosen on measured rows, or assumed for want
of them. *Effect* is what a number does to rows that took no part in choosing it; *not measured*: nobody has looked.
Coefficients of calibrations are not among them: those are fitted, and stand in `calibrations/`. Written by
`python -m validation.numbers_page`.
"""


def records() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name of every record, as the code asks for it, and its keys."""
    for section, parts in tomllib.loads(NUMBERS.read_text(encoding="utf-8")).items():
        yield from ((f"{section}.{name}", record) for name, record in parts.items())


def page() -> str:
    """Return the page."""
    return "\n".join((TEXT, *(_paragraph(name, record) for name, record in records())))


def _paragraph(name: str, record: Mapping[str, Any]) -> str:
    value = record["value"]
    shown = ", ".join(f"{key} {one:g}" for key, one in value.items()) if isinstance(value, dict) else f"{value:g}"
    return (
        f"## {name}: {shown}\n\nWhat: {record['means']}.\n\nChosen on: {record['rows']}.\n\n"
        f"Effect: {record['effect']}.\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser_of("validation.numbers_page", __doc__).parse_args(arguments)

    def work() -> None:
        PAGE.write_text(page(), encoding="utf-8")

    return finished(work)


if __name__ == "__main__":
    sys.exit(main())
