"""How good predictions are: errors, ranking, memory calls, hold-out, conformal scores. Pure functions over arrays."""
