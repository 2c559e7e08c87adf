"""Lowering of layers that work on sequences: embeddings, attention, and what ties an embedding to the output.

n: sub-batch [samples]; s: positions; h: features; a: heads, each of h/a features; V: rows of a table; E = n·s·h.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
embedding          2E, 8-byte number of each token           V·h to clear, 3E to add rows, the numbers
... by position    2·s·h, once for all samples               E + V·h (a sum over samples)
sum of tables      3E each, an ``add``                       0
scores  Q·Kᵀ       a·n products (s x h/a)·(h/a x s)          two (s x s)·(s x h/a): of Q and of K
softmax            2·n·a·s²                                  3·n·a·s²
dropout            2·n·a·s², 1-byte mask                     the same
context  P·V       a·n products (s x s)·(s x h/a)            (s x h/a)·(h/a x s) of P, (s x s)·(s x h/a) of V
fused attention    a·n heads of s queries and s keys         the same, in place of the four rows above
=================  ========================================  ==========================================

The products of attention are batched, one a head and sample, and stand apart from those of linear layers. Scaling and
masking are part of the softmax kernel, as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053); heads are split and
joined without copies. Fused attention never writes the scores (FlashAttention, Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.workload.ledger import Ledger, fixed, per_sample, traffic
from planner.workload.program import Site

__all__ = ["TOKEN_BYTES", "lower_attention", "lower_embedding", "lower_first_position", "lower_tied_gradient"]

TOKEN_BYTES = 8
"""Of a token's number, as PyTorch keeps it."""


def lower_embedding(ledger: Ledger, site: Site) -> None:
    """Note looking up a row a token, of each table, and their sum; backward, the gradients of the tables."""
    layer, elements = site.layer, site.output_elements
    index_bytes = TOKEN_BYTES * site.input_elements
    for table in ("vocabulary", "types"):
        if layer.integer(table):
            cleared = layer.integer(table) * layer.integer("features")
            work = (per_sample(elements), (cleared, 3 * elements), per_sample(index_bytes))
            ledger.add("embedding", FORWARD, site.position, *traffic(elements, 2 * elements, index_bytes))
            ledger.add("embedding", BACKWARD_WEIGHT, site.position, *work)
    if layer.integer("positions"):
        table_elements = layer.integer("positions") * layer.integer("features")
        ledger.add("embedding", FORWARD, site.position, fixed(elements), fixed(2 * elements), fixed(index_bytes))
        work = (per_sample(elements), (table_elements, elements), fixed(0))
        ledger.add("embedding", BACKWARD_WEIGHT, site.position, *work)
    sums = sum(layer.integer(table) > 0 for table in ("positions", "types"))
    if sums:
        ledger.add("add", FORWARD, site.position, *traffic(elements, 3 * elements), count=fixed(sums))


def lower_attention(ledger: Ledger, site: Site) -> None:
    """Note scores, softmax, dropout and context; backward the gradients of queries, keys, values and weights."""
    if site.layer.attributes["fused"]:
        _lower_fused_attention(ledger, site)
    else:
        _lower_unfused_attention(ledger, site)


def _lower_fused_attention(ledger: Ledger, site: Site) -> None:
    heads, (positions, features) = site.layer.integer("heads"), site.output
    sizes = (positions, positions, features // heads, int(bool(site.layer.attributes["causal"])))
    for direction in (FORWARD, BACKWARD_DATA) if site.has_gradient else (FORWARD,):
        ledger.add("attention", direction, site.position, per_sample(heads), *map(fixed, sizes))


def _lower_unfused_attention(ledger: Ledger, site: Site) -> None:
    heads, (positions, features) = site.layer.integer("heads"), site.output
    s, width, batch = fixed(positions), fixed(features // heads), per_sample(heads)
    scores, context = (s, s, width, batch), (s, width, s, batch)
    for product in (scores, context):
        ledger.add("gemm", FORWARD, site.position, *product)
    weights = heads * positions**2
    rows = per_sample(heads * positions)
    ledger.add("softmax", FORWARD, site.position, *traffic(weights, 2 * weights), rows)
    dropped = traffic(weights, 2 * weights, weights) if site.layer.number("dropout") else None
    if dropped:
        ledger.add("dropout", FORWARD, site.position, *dropped)
    if not site.has_gradient:
        return
    ledger.add("gemm", BACKWARD_DATA, site.position, *scores)
    ledger.add("gemm", BACKWARD_DATA, site.position, *context, count=fixed(3))
    ledger.add("softmax", BACKWARD_DATA, site.position, *traffic(weights, 3 * weights), rows)
    if dropped:
        ledger.add("dropout", BACKWARD_DATA, site.position, *dropped)


def lower_first_position(ledger: Ledger, site: Site) -> None:
    """Forward is a view; backward clears the gradient of the whole sequence and copies that of one position."""
    if site.has_gradient:
        copied = site.input_elements + 2 * site.output_elements
        ledger.add("copy", BACKWARD_DATA, site.position, *traffic(site.input_elements, copied))


def lower_tied_gradient(ledger: Ledger, site: Site) -> None:
    """Note the sum of the two gradients of a table that a linear layer shares with the embedding."""
    elements = site.output[-1] * site.inputs[0][-1]
    ledger.add("add", BACKWARD_DATA, site.position, fixed(elements), fixed(3 * elements), fixed(0))
