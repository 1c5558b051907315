"""The process of a model peer."""

from __future__ import annotations

import json

from bestof.bench.model.job import Job
from bestof.worker.process import WorkerProcess


def start_peer(job: Job) -> WorkerProcess:
    """Start the peer of this job. Returns a context manager that ends the process."""
    return WorkerProcess("bestof.bench.model.peer_worker", json.dumps(job.to_dict()), job.threads)
