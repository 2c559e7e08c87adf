"""Who serves a call, a message, a copy: asked in order, each with a record of where its coefficients come from.

A kernel is served by the first of these that does (``find_kernel`` and ``split`` of :mod:`planner.sources.sources`):

===================  ========================================================================================
exact call           the very call as the device was timed at it (:mod:`planner.sources.layer_calls`)
scaling curve        that call at a sub-batch that it was not timed at (:mod:`planner.costs.measured_calls`)
same die             the call as a device with the same die was timed at it, by the ratio of the two
                     (:mod:`planner.sources.layer_calls`)
fit                  a fit to kernels of the device, calibrations in their order; inside one an entry of the very
                     kind, precision and direction goes before one that serves several; products in 8 bits on a
                     GPU are those in 16 at the ratio of the peaks, unless a fit in 8 bits misses by less
scaled               a fit of a device with the same die, scaled (:mod:`planner.sources.devices`)
derived precision    a fit of either in another precision of the same units (:mod:`planner.sources.devices`)
nearest device       a fit of the nearest measured device (:mod:`planner.sources.devices`)
datasheet            peak rates with stated efficiencies; beside a calibration that the user named only for
                     kernels whose work is bytes: products, convolutions and attention must be calibrated
===================  ========================================================================================

Scaled, derived and nearest-device fits come as calibrations that hold only what those before them lack
(:mod:`planner.sources.devices`). Kernels and framework overheads belong to an accelerator; collectives, storage and
host terms to a cluster, and where nothing was measured to its links, with stated values. What nothing serves is refused
in one sentence with the command that mends it (:mod:`planner.sources.source`), never guessed. An entry whose held-out
error is above 100 % is passed over, of whatever calibration: the next one serves, and a warning names both.
"""
