"""For every test: no decisions of this machine's user are read or written, and nothing is fetched.

A test marked `long` runs by `make test-all` only. `long(every=10)` is for tests with hundreds of
parameters: one in ten of them stays in `make test`, always the same ones.
"""

import os
import signal
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

from postgresql_server import stop_shared

os.environ["BESTOF_STORE"] = "off"
os.environ["BESTOF_STORE_WAIT"] = "60"  # a loaded machine must not decide what a test finds
os.environ.pop("BESTOF_FORCE", None)
os.environ["BESTOF_BUDGET"] = "off"  # tests count trials; those of budgets switch it on
os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that spin while they wait take the processor of other tests. With two processes of tests
# on two processors, kernels on two threads took 8 times the processor time, and NumPy's float64
# references 13 times. Both are read when the libraries are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and tables would be as narrow

# A shell lets what it runs in the background ignore interrupts, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Drawing examples takes Hypothesis longer on a loaded machine, which is no failure.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is not None and "every" in mark.kwargs:
            families[item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        every = family[0].get_closest_marker("long").kwargs["every"]
        for item in family[::every]:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "long"]


def pytest_sessionfinish() -> None:
    stop_shared()
