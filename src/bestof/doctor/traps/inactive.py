"""What of bestof is inactive in this process, and why."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import bestof.torch as integration
from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap


class Inactive(Trap):
    """Enables bestof at the end, and asks what it leaves to PyTorch.

    A release of PyTorch that is new to bestof is tried in a child process first.
    """

    name = "bestof inactive"
    is_slow = True

    def findings(self, seen: Seen) -> Sequence[Finding]:  # noqa: ARG002 - it asks elsewhere
        integration.enable({"threads": {"fit": False}})
        left_out = integration.summary().left_out
        integration.disable()
        if not left_out:
            told = f"every operation can be chosen with PyTorch {torch.__version__}"
            return [Finding(self.name, False, None, told)]
        names = ", ".join(name for name, _ in left_out)
        told = f"PyTorch {torch.__version__} keeps {names}: {left_out[0][1]}"
        cure = "pip install torch==2.13.0, the release that the tests run with"
        return [Finding(self.name, True, None, told, cure)]
