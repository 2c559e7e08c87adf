"""What the commands of this folder share: help from their docstring, errors as one sentence, exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from planner.errors import PlannerError

__all__ = ["existing_folder", "finished", "parser_of"]

INTERRUPTED = 130
"""128 and the number of the signal, as shells have it."""


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of ``python -m name``, whose help is the docstring of its module."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def existing_folder(text: str) -> Path:
    """Return the folder of that name: the type of an argument, refused before anything is computed."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder that exists, got {text!r}")
    return path


def finished(work: Callable[[], int | None]) -> int:
    """Do the work of a command and return its exit code; an error becomes one sentence on stderr."""
    try:
        return work() or 0
    except PlannerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; a file is written whole or not at all\n")
        return INTERRUPTED
