"""Standard output holds results and nothing else; sentences beside them go to standard error."""

from __future__ import annotations

import sys

__all__ = ["note", "write"]


def write(text: str) -> None:
    """Write a result."""
    sys.stdout.write(text)


def note(text: str) -> None:
    """Write a sentence that is not the result."""
    sys.stderr.write(f"planner: {text}\n")
