"""Threads of small matrices wait for each other more than they work, most of all beside a second worker of pytest.

Libraries read how many there are when they are loaded, in commands that tests start, too: before tests/conftest.py.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
