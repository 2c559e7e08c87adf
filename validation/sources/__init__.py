"""How the measured runs of each public source become runs of the planner."""
