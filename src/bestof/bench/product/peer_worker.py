"""The process of one peer: `python -m bestof.bench.product.peer_worker PEER`."""

from __future__ import annotations

import sys

from bestof.bench.convolution.peer_worker import PeerWorker
from bestof.bench.product.case import Case
from bestof.bench.product.peers.table import peer_named
from bestof.worker.serve import serve

if __name__ == "__main__":
    serve(lambda: PeerWorker(peer_named(sys.argv[1]), Case.from_json))
