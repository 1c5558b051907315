"""Chooses by the native hot path; the faster alternative must win."""

import sys
import time

from bestof import BestOf
from bestof.selection import hot_path


def slow(n):
    time.sleep(0.002)
    return n


def fast(n):
    return n


choose = BestOf(name="answer", alternatives=[("slow", slow), ("fast", fast)], get_problem_size=int)
for _ in range(50):
    assert choose(7) == 7
report = str(choose.report())
assert "7: fast" in report, report
assert hot_path.HotPath is not hot_path.PythonHotPath, "the compiled hot path is missing"
assert "torch" not in sys.modules
assert "numpy" not in sys.modules
print(report)
