"""Plan training runs: predict epoch times of configurations and pick the best one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import predict, suggest
    from planner.errors import PlannerError

__all__ = ["PlannerError", "__version__", "predict", "suggest"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load what answers when it is asked for first: the command line starts without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as above

    return getattr(import_module("planner.errors" if name == "PlannerError" else "planner.api"), name)
