"""PyTorch, imported when it is needed."""

from __future__ import annotations

from typing import Any

from planner.errors import MissingPackageError

__all__ = ["import_torch"]


def import_torch() -> Any:
    """Return the torch module, or raise MissingPackageError saying how to get it."""
    try:
        import torch  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise MissingPackageError(
            "measuring must be done with PyTorch, got no package torch; pip install 'epoch-planner[torch]'"
        ) from error
    return torch
