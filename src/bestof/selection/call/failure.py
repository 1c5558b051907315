"""Handle a failing alternative: for the call, for the error that the program gets, and in
reports."""

from __future__ import annotations

from collections.abc import Mapping

from bestof.errors import NoAlternative
from bestof.selection.notice import warn
from bestof.selection.state.journal import DisqualificationEntry
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.tuning import Tuning
from bestof.selection.trials.circumstances import circumstances, raised, told
from bestof.selection.trials.trial import Trial

# The most links of a chain of exceptions that are searched. A function may raise its own error from
# one that it caught.
_LINKS = 8


def comes_from_within(failure: BaseException, trial: Trial, owner: object) -> bool:
    """Return whether a trial failed because a call of the same selector inside it was unanswered.

    Then no other alternative is tried. Each would call the selector again, which takes two to the
    power of the depth calls for one error.
    """
    parent = trial.parent
    if isinstance(failure, RecursionError) and parent is not None and parent.has_above(owner):
        return True
    error: BaseException | None = failure
    for _ in range(_LINKS if trial.unanswered else 0):
        if error is None:
            return False
        if any(error is one for one in trial.unanswered):
            return True
        error = error.__cause__ or error.__context__
    return False


def unanswered(where: str, tuning: Tuning, failures: Mapping[int, Exception]) -> Exception:
    """Return the error of a call that every alternative failed to answer.

    If all raised the same type, the call itself is taken to be at fault. The program then gets the
    error that it would get without a selector. No alternative is disqualified.
    """
    names = {p: tuning.candidates[p].alternative.name for p in failures}
    first = failures[min(failures)]
    reasons = "; ".join(f"{names[p]}: {told(failures[p])}" for p in sorted(failures))
    message = f"{where}: every alternative failed: {reasons}"
    if len({type(error) for error in failures.values()}) > 1:
        return NoAlternative(message, {names[p]: error for p, error in sorted(failures.items())})
    differ = len({str(error) for error in failures.values()}) > 1
    if differ and hasattr(first, "add_note"):  # Python 3.11
        first.add_note(message)
    return first


def disqualify_failed(
    knowledge: Knowledge, tuning: Tuning, reasons: Mapping[int, str]
) -> dict[str, str]:
    """Disqualify alternatives for these reasons, by position.

    Return the reasons by name, without those for which an earlier process disqualified the same
    alternative. Called with the lock held.
    """
    news = {}
    for position, reason in reasons.items():
        candidate = tuning.candidates[position]
        is_news = not tuning.failed_before(position, reason)
        was_shared = tuning.shared is not None
        if not tuning.disqualify(position, reason):
            continue
        if was_shared and tuning.decision is None:
            knowledge.share(tuning)  # with those in which it was disqualified too
        candidate.circumstances = circumstances()
        name = candidate.alternative.name
        if is_news:
            news[name] = reason
        knowledge.journal.add(DisqualificationEntry(tuning.problem, name, reason))
        if tuning.decision is not None and tuning.decision.position == position:
            knowledge.reopen(tuning)
    return news


def reasons_of(
    failures: Mapping[int, Exception], position: int, wrong: str | None
) -> dict[int, str]:
    """Return the reasons for which alternatives are disqualified, by position.

    `failures` are those that raised. `wrong` says in what way the result of `position` was wrong.
    """
    reasons = {failed: raised(error) for failed, error in failures.items()}
    if wrong is not None:
        reasons[position] = f"wrong result: {wrong}"
    return reasons


def warn_disqualified(where: str, reasons: Mapping[str, str]) -> None:
    """Warn of disqualified alternatives, by name."""
    for name, reason in reasons.items():
        warn(
            f"{where}: alternative {name!r} was disqualified: {reason}; another alternative "
            "answered the call"
        )
