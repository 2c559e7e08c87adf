"""Kinds of layers: each declared once, with all that is known of it (:class:`planner.domain.layers.record.LayerKind`).

n: sub-batch [samples]; E: elements of a layer's output in the sub-batch. Traffic counts every tensor once a kernel,
none kept between kernels; a residual sum passes its gradient on untouched.

=============  =============================  ==============================================
kind           elements moved forward         elements moved backward
=============  =============================  ==============================================
bias           2E                             E (a reduction)
activation     2E                             3E
max_pool       in + E, 4-byte index of E      the same
average_pool   in + E                         the same
upsample       in + E                         the same
batch_norm     3E (two reads, one write)      5E
layer_norm     2E                             5E
lrn            3E                             5E
dropout        2E, 1-byte mask of E           the same
multiply       2E and the second input        2E and it, and 3E; E more to sum over an image
layer_scale    2E                             5E, and E to sum
drop_path      2E                             2E
add            3E for two inputs              0; 3E for every gradient that meets another
concat         2E                             2E
softmax        3E of a loss                   2E
=============  =============================  ==============================================

Kept for the backward pass, as PyTorch does; tensors are counted once however many layers keep them:

- convolution, fully connected, batch and layer normalisation keep their input (weight gradients need it), layer
  normalisation two fp32 numbers a position besides;
- ReLU, tanh and sigmoid keep their output, in place or not, and so does leaky ReLU, taken to be done in place; GELU,
  SiLU, hard swish and hard sigmoid keep their input, products of two tensors both;
- max-pooling keeps its input and 8-byte indices of its output, average pooling its input, dropout a 1-byte mask;
- local response normalisation, made of simple operations, keeps its input, padded squares, their mean and its power;
- attention keeps queries, keys and values, the softmax of its scores and, with dropout, its mask and what it leaves:
  nothing is made again in the backward pass; fused attention keeps queries, keys and values, its output and an fp32
  number a head and position, and makes its weights again;
- embeddings keep the numbers of the tokens, of 8 bytes;
- the loss keeps the softmax of its input, in fp32 in mixed precision too; global pooling, upsampling, add, concat,
  flatten, windows and dropped samples keep nothing.

Sources: Chetlur et al. 2014, arXiv:1410.0759 (convolution as matrix products); Oyama et al., SPRINT slides, 2016
(im2col as a kernel whose work is the elements of the column matrix).
"""

from planner.domain.layers import attentions, plain, products, sequences
from planner.domain.layers.record import LAYER_KINDS

__all__ = ["LAYER_KINDS"]

LAYER_KINDS |= products.KINDS | sequences.KINDS | attentions.KINDS | plain.KINDS
