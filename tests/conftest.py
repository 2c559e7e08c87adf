"""What all tests share."""

import sys
from pathlib import Path

from hypothesis import settings

# Scripts of the checkout, such as validation, are importable; the installed package goes before the checkout's.
sys.path.append(str(Path(__file__).parent.parent))

# How long an example takes says nothing on a machine with other work.
settings.register_profile("planner", deadline=None)
settings.load_profile("planner")
