"""Write the accuracy page, or check that no figure on it worsened.

    python -m validation            # writes docs/accuracy.md and docs/accuracy.json
    python -m validation --check    # compares today's figures with docs/accuracy.json; 1 if one is worse by over 5 %
    python -m validation --check --axes network  # of what is predicted without its network alone, as CI does
    python -m validation --page     # writes docs/accuracy.md again from docs/accuracy.json, without predicting anything

Progress goes to stderr. A file is written whole or not at all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from planner.formats.documents import dump_json, parse_text, read_text, write_file
from validation.accuracy_answers import AXES, answer_all
from validation.accuracy_check import SHARE, compared
from validation.accuracy_figures import NETWORK, document_of
from validation.accuracy_page import page_of
from validation.command import existing_folder, finished, parser_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
UPDATE = "`python -m validation` writes the new figures; a line under Changed predictions in CHANGELOG.md says why"


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("validation", __doc__)
    parser.add_argument("--docs", type=existing_folder, default=DOCS, help="folder of the page; default: docs/")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare, write nothing")
    what.add_argument("--page", action="store_true", help="write the page from the figures that are there")
    parser.add_argument(
        "--axes",
        choices=AXES,
        nargs="+",
        default=AXES,
        help="of --check: what is left out, network among it; default: all",
    )
    options = parser.parse_args(arguments)
    figures = options.docs / "accuracy.json"
    if not options.check and tuple(options.axes) != AXES:
        parser.error("--axes must be given with --check: a page has all of them")
    if NETWORK not in options.axes:
        got = " ".join(options.axes)
        parser.error(f"--axes must name {NETWORK}, got {got}: targets, rankings and memory are of networks left out")
    return finished(
        lambda: _check(figures, tuple(options.axes)) if options.check else _write(figures, only_page=options.page)
    )


def _write(figures: Path, *, only_page: bool) -> None:
    document = _committed(figures) if only_page else _today()
    if not only_page:
        write_file(figures, dump_json(document), force=True)
    write_file(figures.with_name("accuracy.md"), page_of(document), force=True)


def _check(path: Path, axes: tuple[str, ...]) -> int:
    committed = _committed(path)
    found = compared(
        committed, document_of(answer_all(say=_say, axes=axes, counted=False)), without=set(AXES) - set(axes)
    )
    for sentence in found.better:
        _say(f"better: {sentence}")
    for sentence in found.worse:
        _say(f"worse: {sentence}")
    if not found.worse:
        _say(f"no figure of {path.name} worsened by more than {SHARE:.0%}")
    if found.better and not found.worse:
        _say(f"better than {path.name}; {UPDATE}")
    if found.worse:
        _say(f"{len(found.worse)} figures of {path.name} worsened by more than {SHARE:.0%}; if that is meant, {UPDATE}")
    return 1 if found.worse else 0


def _committed(path: Path) -> dict[str, Any]:
    return parse_text(read_text(path), str(path), "json")


def _today() -> dict[str, Any]:
    return document_of(answer_all(say=_say))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
