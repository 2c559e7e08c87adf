"""Speed and memory against fixed workloads; run from a checkout."""
