"""Where things lie in this checkout."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CASES = TESTS / "reference" / "cases"
PERF = ROOT / "benchmarks" / "perf"
