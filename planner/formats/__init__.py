"""Text to records and back: the only place that knows the keys of files."""
