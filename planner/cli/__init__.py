"""The command line: options declared once, commands as short chains of calls."""

import gc

gc.set_threshold(100_000)  # an answer takes less than a second and keeps most of what it reads: little is garbage
