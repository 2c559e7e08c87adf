"""Published measurements, and scripts that turn them into files of this program; run from a checkout."""
