"""What ``planner calibrate`` is asked to measure: its networks, found and checked against the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner import catalog
from planner.domain.cluster import Accelerator
from planner.domain.configuration import Configurations
from planner.domain.network import Network
from planner.errors import NOTHING, ParameterError
from planner.probes.gpu import describe_gpu
from planner.probes.layer_points import SMALL_SUB_BATCH
from planner.probes.machine import describe_cpu
from planner.probes.steps import STEP_PRECISIONS
from planner.units import format_bytes
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.shards import has_tensor_shards, tensor_shard

__all__ = ["Request", "needed_bytes", "networks_of", "shards_of", "trained"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured.

    Attributes
    ----------
    budget_s : float
        Time for all, measuring, fitting and writing [s].
    networks : tuple of Network
        Whose own calls are timed; none: points of a generic design serve the bundled ones.
    precisions : tuple of str
        Empty: fp32 of a CPU, all that a GPU has.
    target_error : float or None
        Expected mean relative error of these networks' steps at which measuring stops; None: it uses its time up.
    device : str
        As PyTorch names it.
    shards : tuple of Network
        What one rank computes of networks under tensor parallelism: their calls are timed too, no steps.
    """

    budget_s: float
    networks: tuple[Network, ...] = ()
    precisions: tuple[str, ...] = ()
    target_error: float | None = None
    device: str = "cpu"
    shards: tuple[Network, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """Precisions without whose steps a calibration is refused."""
        return trained(("fp32", *self.precisions))

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """Networks and shards: whose calls are timed."""
        return (*self.networks, *self.shards)


def trained(precisions: Iterable[str]) -> tuple[str, ...]:
    """Return those that training steps are timed in, each once."""
    return tuple(one for one in dict.fromkeys(precisions) if one in STEP_PRECISIONS)


def networks_of(names: Iterable[str], device: str = "cpu") -> tuple[Network, ...]:
    """Return the networks whose own layers are to be measured, each once; refuse one that the device cannot hold."""
    networks = tuple(catalog.find_network(name) for name in dict.fromkeys(names))
    if networks:
        _check_fits(networks, _accelerator(device))
    return networks


def shards_of(networks: Sequence[Network], degrees: Sequence[int]) -> tuple[Network, ...]:
    """Return a rank's shard of every network with attention, of each tensor-parallel degree."""
    if degrees and not networks:
        raise ParameterError("--network", "given beside --tensor-parallel", NOTHING, "name the networks to be split")
    split = [network for network in networks if has_tensor_shards(network)] or networks
    return tuple(tensor_shard(network, degree) for network in split for degree in degrees if degree > 1)


def _accelerator(device: str) -> Accelerator:
    return describe_cpu()[0] if device == "cpu" else describe_gpu(device, catalog.known_accelerator).accelerator


def needed_bytes(network: Network, kind: str) -> float:
    """Return the bytes of a network at the small sub-batch, on a device of a kind."""
    ledger = Memory(network, MemoryRules.of("fp32", network.optimizer, device_kind=kind))
    return float(ledger.fullest(Configurations.having(sub_batch=SMALL_SUB_BATCH)).total)


def _check_fits(networks: Iterable[Network], accelerator: Accelerator) -> None:
    for network in networks:
        bytes_needed = needed_bytes(network, accelerator.kind)
        if bytes_needed > accelerator.memory_bytes:
            raise ParameterError(
                "--network",
                f"a network that fits the {format_bytes(accelerator.memory_bytes)} of this machine at a sub-batch of "
                f"{SMALL_SUB_BATCH}",
                f"{network.name}, which needs {format_bytes(bytes_needed)}",
            )
