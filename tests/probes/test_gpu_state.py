import os
import sys
import time
from pathlib import Path

import pytest

from planner.probes.machine import (
    GpuState,
    busy,
    installed_gpus,
    parse_states,
    processes,
    state_circumstances,
    states,
    throttled,
    watched,
)

IDLE = "580.159.04, 345, 2619, 31, 71.52, 0, 4, 81559, 0x0000000000000001"
LOADED = "580.159.04, 1755, 2619, 58, 698.91, 100, 9000, 81559, 0x0000000000000004"


def test_readings_are_in_si_units() -> None:
    idle, loaded = parse_states(f"{IDLE}\n{LOADED}\n")
    assert idle == GpuState("580.159.04", 345e6, 2619e6, 31.0, 71.52, 0.0, 4 * 2.0**20, 81559 * 2.0**20, ())
    assert (loaded.sm_clock_hz, loaded.utilization, loaded.throttle) == (1755e6, 1.0, ("power limit",))


def test_figures_that_are_not_known_are_absent() -> None:
    text = "535.1, 1380, 877, [N/A], [Not Supported], [N/A], 0, 16160, [Not Supported]\nNo devices were found\n\n"
    (state,) = parse_states(text)
    assert state == GpuState("535.1", 1380e6, 877e6, None, None, None, 0.0, 16160 * 2.0**20)
    assert state_circumstances([state]) == {
        "gpu_sm_clock_hz": "1.38e+09",
        "gpu_memory_clock_hz": "8.77e+08",
        "gpu_throttle": "none",
    }
    assert parse_states("") == ()
    assert state_circumstances([]) == {}


def test_reasons_of_throttling_are_named_and_idleness_is_none() -> None:
    masks = {"0x1": (), "0x2": (), "0x60": ("temperature (software)", "temperature (hardware)"), "0x88": 2}
    for mask, expected in masks.items():
        (state,) = parse_states(f"{LOADED.rsplit(',', 1)[0]}, {mask}")
        assert len(state.throttle) == expected if isinstance(expected, int) else state.throttle == expected


def test_throttling_in_a_fifth_of_the_readings_is_said() -> None:
    slow, fast = parse_states(f"{LOADED}\n{IDLE}")
    assert throttled([slow] + [fast] * 9) == ""
    assert throttled([]) == ""
    assert throttled([slow, fast]).startswith("the GPU slowed itself down in 50% of the readings (power limit); ")
    said = state_circumstances([slow, slow, fast])
    assert (said["gpu_sm_clock_hz"], said["gpu_temperature_c"], said["gpu_throttle"]) == (
        "1.755e+09",
        "58",
        "power limit",
    )


def test_a_busy_gpu_is_told_by_processes_utilisation_and_memory() -> None:
    idle, loaded = parse_states(f"{IDLE}\n{LOADED}")
    assert busy([idle], ()) == ""
    assert busy([], ()) == ""
    assert "(1 other process)" in busy([idle], (7,))
    assert "(2 other processes, 100% utilisation)" in busy([loaded], (7, 8))
    assert "(100% utilisation, 11% of its memory held)" in busy([loaded], ())
    assert busy([idle], (7,)).startswith("the GPU was busy before it was measured")


def test_without_the_program_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert (states("0"), processes("0"), installed_gpus()) == ((), (), ())
    with watched("0") as seen:
        pass
    assert seen == []


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for the driver's program: it prints a line for what it is asked."""
    path = tmp_path / "nvidia-smi"
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*compute-apps*) echo 17; echo {os.getpid()};;\n"
        '*name,memory.total*) echo "NVIDIA H200, 143771"; echo "Tesla V100-SXM2-16GB, 16160";;\n'
        f'*loop-ms*) while true; do echo "{LOADED}"; sleep 0.02; done;;\n'
        f'*) echo "{IDLE}";;\n'
        "esac\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


@pytest.mark.usefixtures("program")
def test_the_program_is_asked() -> None:
    assert [state.sm_clock_hz for state in states("0")] == [345e6]
    assert processes("0") == (17,)
    assert installed_gpus() == (("NVIDIA H200", 143771 * 2.0**20), ("Tesla V100-SXM2-16GB", 16160 * 2.0**20))
    with watched("0") as seen:
        time.sleep(0.3)
    assert len(seen) >= 2
    assert {state.utilization for state in seen} == {1.0}


def test_readings_that_the_program_keeps_back_are_not_lost(program: Path) -> None:
    """It buffers as C programs do: less than a block of a pipe, and more than a terminal takes unread, come through."""
    loop = f"import itertools, time\nfor at in itertools.count():\n    print('{LOADED}'); at < 60 or time.sleep(0.05)"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in\n*loop-ms*) exec {sys.executable} -E -c "{loop}";;\n*) echo "{IDLE}";;\nesac\n'
    )
    with watched("0") as seen:
        time.sleep(1.0)
        assert seen == []
    assert len(seen) > 60
    assert {state.sm_clock_hz for state in seen} == {1755e6}


def test_a_program_that_fails_tells_nothing(program: Path) -> None:
    program.write_text("#!/bin/sh\necho broken\nexit 9\n")
    assert (states("0"), processes("0"), installed_gpus()) == ((), (), ())


def test_drivers_that_know_the_older_name_only_are_asked_by_it(program: Path) -> None:
    program.write_text(f'#!/bin/sh\ncase "$*" in *throttle_reasons*) echo "{IDLE}";; *) exit 2;; esac\n')
    assert [state.sm_clock_hz for state in states("0")] == [345e6]
