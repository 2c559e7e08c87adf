"""Plan training runs: predict epoch times of configurations and pick the best one."""

__version__ = "0.1.0"
