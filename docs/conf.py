"""The site of the documentation: `make docs` builds it in build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from bestof.distribution import VERSION

project = "bestof"
author = "the authors of bestof"
release = version = VERSION
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "docstring_fields",
    "command_help",
]
myst_heading_anchors = 4  # links such as torch.md#freed-memory
default_role = "code"  # docstrings mark code by one backtick
nitpicky = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
python_maximum_signature_line_length = 88
exclude_patterns = ["_ext"]
html_theme = "furo"
html_title = f"bestof {VERSION}"
html_copy_source = False
# A page that names a language which no lexer knows is a mistake, and so is a link to nothing.
suppress_warnings: list[str] = []
