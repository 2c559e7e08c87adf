"""PyTorch, imported when it is needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from planner.errors import MissingPackageError

__all__ = ["check_torch", "import_torch"]

MISSING = "measuring must be done with PyTorch, got no package torch; pip install 'epoch-planner[torch]'"


def check_torch() -> None:
    """Raise MissingPackageError where PyTorch is not installed, without the seconds that importing it takes."""
    if find_spec("torch") is None:
        raise MissingPackageError(MISSING)


def import_torch() -> Any:
    """Return the torch module, or raise MissingPackageError saying how to get it."""
    try:
        import torch  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise MissingPackageError(MISSING) from error
    return torch
