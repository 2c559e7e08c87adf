"""How a session tells what it does."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Say"]

Say = Callable[[str], None]
"""Takes a sentence that is not the result."""
