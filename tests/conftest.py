"""What all tests share."""

import os
import sys
from pathlib import Path

from hypothesis import settings

# Threads of small matrices wait for each other more than they work, most of all beside a second worker. Libraries read
# this when they are loaded, in commands that tests start, too.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Scripts of the checkout, such as validation, are importable; the installed package goes before the checkout's.
sys.path.append(str(Path(__file__).parent.parent))

# How long an example takes says nothing on a machine with other work.
settings.register_profile("planner", deadline=None)
settings.load_profile("planner")
