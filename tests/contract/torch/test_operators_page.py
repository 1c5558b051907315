"""The examples in docs/operators.md print what the page says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"


def test_examples_print_what_the_page_says() -> None:
    text = re.sub(r"^```.*$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, PAGE.name, 0)
    assert len(examples.examples) >= 5
    said: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(examples, out=said.append)
    assert outcome.failed == 0, "".join(said)
