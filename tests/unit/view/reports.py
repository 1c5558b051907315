"""Reports that contain every case."""

from __future__ import annotations

from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport

LONG = "x 8×64×112×112 float32 channels last, w 64×3×3, " + ", ".join(
    f"axis {i} stride {i}" for i in range(12)
)
REASON = "WrongResult: differs from 'as is' by 0.0123 relative, where check=0.001 allows it"

NESTED = Report(
    (
        SelectorReport(
            "layer",
            2,
            (
                ProblemReport(
                    LONG,
                    "shared",
                    "measured",
                    (
                        AlternativeReport(
                            "independent",
                            "measured",
                            0.01834,
                            0.0012,
                            10,
                            1.0,
                            None,
                            (("forward", "a"), ("gone", "z")),
                        ),
                        AlternativeReport(
                            "shared", "chosen", 0.01234, 0.0002, 10, 1.49, None, (("forward", "a"),)
                        ),
                    ),
                ),
                ProblemReport(
                    "b",
                    None,
                    None,
                    (AlternativeReport("independent", "measured", 0.005, None, 3, 1.0),),
                ),
            ),
            24,
            0.51,
            0.12,
        ),
        SelectorReport(
            "forward",
            1,
            (
                ProblemReport(
                    "a",
                    "winograd4",
                    "stored",
                    (
                        AlternativeReport("as is", "measured", 4.21e-3, 1e-4, 10, 1.0),
                        AlternativeReport("winograd4", "chosen", 1.32e-6, 3e-8, 10, 3189.39),
                        AlternativeReport("fft", "pruned", 2.0, None, 2, 0.002),
                        AlternativeReport("direct", "not applicable"),
                        AlternativeReport("<winograd6> [bold]", "disqualified", reason=REASON),
                    ),
                ),
            ),
        ),
        SelectorReport("never called", 1, ()),
    )
)


def _timed(problem: str, seconds: float, *inner: tuple[str, str]) -> ProblemReport:
    first = AlternativeReport("as is", "measured", 2 * seconds, None, 3, 1.0)
    chosen = AlternativeReport("fast", "chosen", seconds, None, 3, 2.0, None, inner)
    return ProblemReport(problem, "fast", "measured", (first, chosen))


# One of the layers has two alternatives and was tried, so it is known what is inside it; the others
# were not.
PARTLY = Report(
    (
        SelectorReport(
            "pass", 1, (_timed("tried", 0.001), _timed("alone", 0.002), _timed("<forced>", 0.003))
        ),
        SelectorReport("pooling", 1, (_timed("tried", 0.004),)),
        SelectorReport(
            "layer",
            2,
            (
                ProblemReport(
                    "alone",
                    "independent",
                    "only",
                    (
                        AlternativeReport("independent", "chosen"),
                        AlternativeReport("shared", "not applicable"),
                    ),
                ),
                _timed("tried", 0.005, ("pass", "tried")),
                ProblemReport(
                    "<forced>", "shared", "forced", (AlternativeReport("independent", "not tried"),)
                ),
                ProblemReport(
                    "new",
                    None,
                    None,
                    (AlternativeReport("independent", "measured", 0.1, None, 1, 1.0),),
                ),
            ),
        ),
    )
)


def _circle(name: str, inner: str) -> SelectorReport:
    alternative = AlternativeReport("only", "chosen", 1.0, None, 1, 1.0, None, ((inner, "p"),))
    return SelectorReport(
        name, 1, (ProblemReport("p", "only", "measured", (alternative,)),), 1, 1.0, 0.0
    )


CIRCLE = Report((_circle("first", "second"), _circle("second", "first"), _circle("self", "self")))
EMPTY = Report(())
