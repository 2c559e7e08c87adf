"""From measurements to coefficients."""
