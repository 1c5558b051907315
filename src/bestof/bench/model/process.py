"""The process of a model peer."""

from __future__ import annotations

import json

from bestof.bench.model.job import Job
from bestof.bench.process import PeerProcess


def start_peer(job: Job) -> PeerProcess:
    """Start the peer of this job. Returns a context manager that ends the process."""
    return PeerProcess("bestof.bench.model.peer_worker", json.dumps(job.to_dict()), job.threads)
