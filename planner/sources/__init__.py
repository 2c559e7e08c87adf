"""Who serves a call: ordered providers, and one sentence when none does."""
