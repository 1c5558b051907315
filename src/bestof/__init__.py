"""Chooses the fastest of several implementations for every problem size, while a program runs."""

from bestof import distribution
from bestof.selection import Alternative, BestOf, best_of, use_lock, use_policy, use_store
from bestof.view import report

__all__ = ["Alternative", "BestOf", "best_of", "report", "use_lock", "use_policy", "use_store"]
__version__ = distribution.VERSION
