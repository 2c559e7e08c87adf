"""Feature maps: what a cost term is, apart from its coefficients."""
