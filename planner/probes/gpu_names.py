"""Names of GPUs: what drivers call them, and what bundled accelerators are called."""

from __future__ import annotations

import re

__all__ = ["gpu_name"]

_NAMES = (
    (r"b200", "b200-sxm-180gb", 179),
    (r"h200", "h200-sxm-141gb", 140.4),
    (r"h100 80gb hbm3", "h100-sxm5-80gb", 80),
    (r"h100 pcie", "h100-pcie-80gb", 80),
    (r"a100-sxm4-80gb|a100-sxm-80gb", "a100-sxm4-80gb", 80),
    (r"a100-sxm4-40gb", "a100-sxm4-40gb", 40),
    (r"a100 80gb pcie|a100-pcie-80gb", "a100-pcie-80gb", 80),
    (r"a100-pcie-40gb", "a100-pcie-40gb", 40),
    (r"a40", "a40", 48),
    (r"a10", "a10", 24),
    (r"rtx a6000", "rtx-a6000", 48),
    (r"rtx 6000 ada generation", "rtx-6000-ada", 48),
    (r"quadro rtx 8000", "quadro-rtx-8000", 48),
    (r"gh200 480gb", "gh200-96gb", 96),
    (r"l4", "l4", 24),
    (r"t4", "t4", 16),
    (r"v100-sxm2-16gb", "v100-sxm2-16gb", 16),
    (r"v100-sxm2-32gb", "v100-sxm2-32gb", 32),
    (r"v100-sxm3-32gb", "v100-sxm3-32gb", 32),
    (r"v100-pcie-16gb", "v100-pcie-16gb", 16),
    (r"v100-pcie-32gb", "v100-pcie-32gb", 32),
    (r"p100-sxm2-16gb", "p100-sxm2-16gb", 16),
    (r"p100-pcie-16gb", "p100-pcie-16gb", 16),
    (r"p40", "p40", 24),
    (r"p4", "p4", 8),
    (r"m40", "m40", 12),
    (r"m60", "m60", 8),
    (r"k80", "k80", 12),
    (r"k40[cmst]?", "k40", 12),
    (r"k20x?m", "k20x", 6),
    (r"gtx 1080 ti", "gtx-1080ti", 11),
    (r"gtx 1080", "gtx-1080", 8),
    (r"rtx 2080 ti", "rtx-2080ti", 11),
    (r"rtx 3090", "rtx-3090", 24),
    (r"rtx 4090", "rtx-4090", 24),
    (r"titan v", "titan-v", 12),
    (r"titan rtx", "titan-rtx", 24),
    (r"titan xp", "titan-xp", 12),
    (r"titan x \(pascal\)", "titan-x-pascal", 12),
    (r"gtx titan x", "titan-x-maxwell", 12),
)
"""Pattern of what the driver says without the maker and line, bundled name, GiB of memory."""
MEMORY_TOLERANCE = 0.1
"""Drivers keep some of the memory, error correction on GDDR a sixteenth of it."""
GIB = 2.0**30


def gpu_name(driver_name: str, memory_bytes: float) -> str:
    """Return the bundled name of a GPU, else its own fit for a file name.

    >>> gpu_name("NVIDIA H100 80GB HBM3", 85e9), gpu_name("NVIDIA GeForce RTX 5090", 34e9)
    ('h100-sxm5-80gb', 'geforce-rtx-5090')
    """
    plain = re.sub(r"^nvidia\s+", "", driver_name.strip().lower())
    model = re.sub(r"^(?:tesla|geforce)\s+", "", plain)
    for pattern, name, size_gib in _NAMES:
        if re.fullmatch(pattern, model) and abs(memory_bytes / (size_gib * GIB) - 1) <= MEMORY_TOLERANCE:
            return name
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown-gpu"
