"""Write docs/single-gpu.md: steps on one GPU, from kernels alone and with coefficients of other networks.

    python -m validation.single_gpu            # writes the page, in about a minute
    python -m validation.single_gpu --check    # compares it with the page that is there; 1 if any figure differs

A file is written whole or not at all.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from planner.formats.documents import read_text, write_file
from validation.command import finished, parser_of
from validation.single_gpu_page import page_of
from validation.single_gpu_rows import groups_of, measured_steps, whole_fits

OUT = Path(__file__).resolve().parent.parent / "docs" / "single-gpu.md"


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("validation.single_gpu", __doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="the page; default: docs/single-gpu.md")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    given = parser.parse_args(arguments)
    return finished(lambda: _run(given.out, check=given.check))


def _run(path: Path, *, check: bool) -> int:
    committed = read_text(path) if check else ""
    steps = measured_steps()
    page = page_of(groups_of(steps), dict(whole_fits(steps)))
    if check:
        return _check(committed, page, path)
    write_file(path, page, force=True)
    return 0


def _check(committed: str, page: str, path: Path) -> int:
    lines = [
        line
        for line in difflib.unified_diff(committed.splitlines(), page.splitlines(), str(path), "today", "", "", 0)
        if not line.startswith("@@")
    ]
    sys.stderr.writelines(f"{line.rstrip()}\n" for line in lines)
    again = "; `python -m validation.single_gpu` writes today's" if lines else ""
    sys.stderr.write(f"{path.name} {'differs from' if lines else 'holds'} today's figures{again}\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
