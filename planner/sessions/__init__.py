"""Application logic without a command line: measuring, sample files, runs of plans, what was kept."""
