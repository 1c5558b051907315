"""The selection engine: it finds out on live calls which alternative is fastest for each problem.

It imports the standard library only.
"""

from bestof.selection.best_of import BestOf
from bestof.selection.decorator import best_of
from bestof.selection.identity.alternative import Alternative
from bestof.selection.policies import Fixed, Race, Rounds, Window, parse_policy
from bestof.selection.reports.report_builder import report_all, store_report
from bestof.selection.state.policy_choice import UnlessShared
from bestof.selection.state.registry import (
    shared_store,
    use_lock,
    use_policy,
    use_store,
)
from bestof.selection.store import default_store, open_store
from bestof.selection.trials.verifier import Verdict, Verifier

__all__ = [
    "Alternative",
    "BestOf",
    "Fixed",
    "Race",
    "Rounds",
    "UnlessShared",
    "Verdict",
    "Verifier",
    "Window",
    "best_of",
    "default_store",
    "open_store",
    "parse_policy",
    "report_all",
    "shared_store",
    "store_report",
    "use_lock",
    "use_policy",
    "use_store",
]
