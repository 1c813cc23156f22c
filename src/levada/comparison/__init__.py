"""Comparison of runs: the return that each group of runs reaches, how sure that is, and how long it takes.

rows = levada.compare(["runs/base-*", "runs/wide-*"], target=475)
for row in rows.groups:
print(row.name, row.returns)
"""

from levada.comparison.compare import Comparison, GroupRow, compare
from levada.comparison.estimates import Estimate
from levada.comparison.records import ComparisonError

__all__ = ["Comparison", "ComparisonError", "Estimate", "GroupRow", "compare"]
