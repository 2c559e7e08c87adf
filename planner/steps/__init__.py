"""From terms to a step: what overlaps, what waits, how long an epoch takes and what an update is made of."""
