"""Which products are made again where every first of two is kept, against a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner import catalog
from planner.workload.program import program
from planner.workload.shards import second_products


def test_of_llama_wk_wo_and_w3_are_made_again() -> None:
    """LLaMA 3.1 8B has wq, wk, wv, wo, w1, w3, w2 in this order: 36 % of their weights come again."""
    h, f, kv = 4096, 14336, 1024
    network = catalog.find_network(
        f"llama:layers=3,hidden={h},heads=32,kv_heads=8,ffn={f},sequence=512,vocabulary=1024,tied=true"
    )
    shares = second_products(network)
    sites = {site.layer.name: site for site in program(network).sites}
    products = [layer.name for layer in network.layers if layer.kind == "linear" and layer.name.startswith("layer1")]
    work = np.array([sites[name].forward_mac for name in products], dtype=float)
    again = work @ [shares[network.layers.index(sites[name].layer)] for name in products] / work.sum()
    assert again == pytest.approx((kv * h + h * h + h * f) / (2 * h * h + 2 * kv * h + 3 * h * f))


def test_every_block_begins_anew() -> None:
    network = catalog.find_network("gpt:layers=3,hidden=64,heads=4,sequence=32,vocabulary=512")
    shares = {layer.name: share for layer, share in zip(network.layers, second_products(network), strict=True)}
    for name, share in shares.items():
        if name.startswith("layer1."):
            assert shares[name.replace("layer1.", "layer3.")] == share
    assert sum(share > 0 for share in shares.values()) > 0
