"""Recognises file systems that several machines share.

SQLite's write-ahead log needs memory that all processes share. Processes on different machines have
none, and would damage the file. So a store on such a file system keeps a rollback journal.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")

SHARED = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "virtiofs"),
        *("lustre", "ceph", "gpfs", "beegfs", "orangefs", "pvfs2", "glusterfs", "gfs2", "ocfs2"),
        *("panfs", "wekafs", "davfs", "sshfs"),
    }
)
"""The types of file systems that several machines may write, as Linux names them."""

LOCAL_FUSE = frozenset(
    {"fuse.overlayfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuseblk"}
)
"""Types under FUSE that one machine writes. Other types under FUSE count as shared."""


def is_shared(path: str | os.PathLike[str], mounts: Path | None = None) -> bool:
    """Return whether several machines may write the file system of a path.

    `mounts` is a table in the format of /proc/self/mounts. Without a table, as on other systems
    than Linux, the answer is no.
    """
    kind = type_of(path, MOUNTS if mounts is None else mounts)
    return kind in SHARED or (kind.startswith("fuse") and kind not in LOCAL_FUSE)


def type_of(path: str | os.PathLike[str], mounts: Path) -> str:
    """Return the type of the file system that holds a path, or "" if the table does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    wanted = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = Path(_unescaped(fields[1]))
        # The last one of several mounts at a place hides the others.
        if (place == wanted or place in wanted.parents) and len(place.parts) >= best:
            best, kind = len(place.parts), fields[2]
    return kind


def _unescaped(text: str) -> str:
    """Return a path of the table. Blanks and backslashes are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
