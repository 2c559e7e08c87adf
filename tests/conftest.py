"""What all tests share."""

import sys
from pathlib import Path

# Scripts of the checkout, such as validation, are importable; the installed package goes before the checkout's.
sys.path.append(str(Path(__file__).parent.parent))
