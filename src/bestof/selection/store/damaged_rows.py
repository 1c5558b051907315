"""The rows of a database that cannot be read."""

from __future__ import annotations


class DamagedRows:
    """Adds one notice for the user, whatever number of rows cannot be read."""

    def __init__(self, title: str, notices: list[str]) -> None:
        self._title = title
        self._notices = notices
        self._told = False

    def tell(self, what: str) -> None:
        """Take the name of a row, such as `the pin of conv2d`."""
        if not self._told:
            self._told = True
            self._notices.append(
                f"{self._title}: {what} is damaged; bestof searches again, here and for every "
                "other row that cannot be read"
            )
