"""Sessions in this process, away from the user's own files and settings."""

import pytest


@pytest.fixture(autouse=True)
def _clean_place(clean_place: None) -> None:
    """Give every test an empty working directory and user data folder, and a plain output."""
