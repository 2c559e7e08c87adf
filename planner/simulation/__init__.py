"""Event counts: what the closed forms of ``steps`` are checked against, and what plans without one are timed by."""
