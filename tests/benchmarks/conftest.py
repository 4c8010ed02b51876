"""Makes `benchmarks` importable, which is not in the wheel: last on the path, so that the wheel itself stays first."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
