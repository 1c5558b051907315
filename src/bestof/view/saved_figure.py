"""Save a figure of matplotlib as a whole file."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

from bestof.whole_file import whole_file


def save_figure(figure: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Save a figure at `path`, whose ending gives the format; `.png` is added to a name without.

    A reader of the file sees the old picture or the new one. `options` are those of `savefig`.
    Raises ValueError for an ending that matplotlib does not know, and OSError.
    """
    place = Path(path)
    if not place.suffix:
        place = place.with_name(f"{place.name.rstrip('.')}.png")
    content = BytesIO()
    figure.savefig(content, format=place.suffix[1:].lower(), **options)
    with whole_file(place) as out:
        out.write(content.getbuffer())
