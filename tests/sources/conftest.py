"""The small machine of the tests of steps."""

from tests.steps.conftest import accelerator, calibration, cluster, every_configuration, make_problem, network

__all__ = ["accelerator", "calibration", "cluster", "every_configuration", "make_problem", "network"]
