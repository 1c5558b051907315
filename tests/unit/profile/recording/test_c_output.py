"""Diverting the output of C code."""

from __future__ import annotations

import ctypes

from bestof.profile.recording.c_output import COutput

_MOST = 100


def test_reading_ends_while_the_program_prints_on() -> None:
    libc = ctypes.CDLL(None)
    taken: list[str] = []

    def take(line: str) -> bool:
        taken.append(line)
        if line != "last\n" and len(taken) < _MOST:
            libc.printf(b"more\n")
            libc.fflush(None)
        return True

    output = COutput(take)
    output.start()
    libc.printf(b"first\n")
    output.drain()
    assert taken == ["first\n"]
    output.drain()
    assert taken == ["first\n", "more\n"]
    libc.printf(b"last\n")
    output.stop()
    assert taken[2:4] == ["more\n", "last\n"]
