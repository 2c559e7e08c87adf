"""Work of a network: kernel calls, totals, gradients and memory. Pure counting, no times."""
