"""Where PyTorch computes a convolution in another way from some number of images on: on one thread of a CPU, in fp32.

It has convolutions of its own, a product for each image, and those of oneDNN (ConvParams::use_mkldnn in
aten/src/ATen/native/Convolution.cpp). Times of the two lie on different lines: pointwise convolutions of MobileNet v2
took 7.1 ms an image up to 15 images, and 4.9 ms from 16 on.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["first_of_another_way"]

MANY_IMAGES = 16
"""From so many on oneDNN computes pointwise convolutions of unit stride."""
FEW_NUMBERS = 20480
"""Of a single image, up to which oneDNN does not compute it."""
LARGE_KERNEL = 3
"""Whose convolutions oneDNN computes all the same, where both sides are larger."""


def first_of_another_way(work: Mapping[str, int]) -> int:
    """Return from how many images on a convolution is computed in another way than fewer are; 0: in the same way.

    Parameters
    ----------
    work : mapping of str to int
        Of the convolution of any number of images.
    """
    kernel = work["k_h"], work["k_w"]
    if kernel == (1, 1) and work["stride_h"] == work["stride_w"] == 1:
        return MANY_IMAGES
    is_small = work["in_c"] * work["in_h"] * work["in_w"] <= FEW_NUMBERS
    return 2 if is_small and work["groups"] == 1 and min(kernel) <= LARGE_KERNEL else 0
