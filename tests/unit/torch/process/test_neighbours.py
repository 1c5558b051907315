"""Waiting threads sleep soon while other processes want the same processors."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import bestof.torch as integration
from bestof import processors as processors_module
from bestof.torch.process import idle_team
from bestof.torch.process import neighbours as module
from bestof.torch.process.idle_team import IdleTeam, can_help
from bestof.torch.process.neighbours import NEIGHBOURS, Neighbours
from bestof.torch.process.openmp import is_gcc, runtimes

pytestmark = pytest.mark.skipif(
    not any(map(is_gcc, runtimes())), reason="needs GCC's OpenMP, on Linux"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(NEIGHBOURS, "_watchers", set())  # plans of other tests live on
    integration.enable({"threads": {"neighbours": False}})
    integration.disable()
    yield
    integration.disable()
    for _ in range(500):  # threads end a moment later
        if not named("bestof-idle-team") and not named("bestof-neighbours"):
            return
        time.sleep(0.01)
    raise AssertionError("a thread was left")


def named(name: str) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == name]


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def test_with_the_team_there_are_more_threads_than_processors() -> None:
    torch.ones(1 << 20).add_(1)  # makes the team of this thread
    team, before = IdleTeam(), tasks()
    team.begin()
    team.begin()  # nothing more
    assert team.begun
    assert tasks() > len(os.sched_getaffinity(0))
    assert tasks() >= before + 2
    team.end()
    team.end()
    assert not team.begun
    for _ in range(500):
        if tasks() <= before:
            return
        time.sleep(0.01)
    raise AssertionError("threads of the team were left")


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_help()
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert not can_help()
    watching = Neighbours()
    watching.watch()
    assert not named("bestof-neighbours")


def test_no_team_is_begun_where_threads_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_team, "room_for_tasks", lambda: 20)
    team = IdleTeam()
    team.begin()
    assert not team.begun
    monkeypatch.setattr(idle_team, "room_for_tasks", lambda: 2000)
    team.begin()
    assert team.begun
    team.end()


@pytest.mark.parametrize("limit", [resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_no_team_is_begun_within_narrow_limits(limit: int) -> None:
    """OpenMP ends a process in which a thread of a team cannot start."""
    soft, hard = resource.getrlimit(limit)
    assert can_help()
    team = IdleTeam()
    try:
        status = processors_module._status(Path("/proc/self/status"))
        most = {
            resource.RLIMIT_NPROC: processors_module._tasks_of_user(Path("/")),
            resource.RLIMIT_AS: (int(status["VmSize"].split()[0]) << 10) + (512 << 20),
            resource.RLIMIT_DATA: (int(status["VmData"].split()[0]) << 10) + (512 << 20),
        }[limit]
        resource.setrlimit(limit, (most, hard))
        team.begin()
        assert not team.begun
    finally:
        resource.setrlimit(limit, (soft, hard))


OUT_OF_SIGHT = """
import resource, torch
from pathlib import Path
from bestof import processors
from bestof.torch.process import idle_team

idle_team.room_for_mappings = lambda: None
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
present = int(processors._status(Path("/proc/self/status"))["VmSize"].split()[0]) << 10
team, hard = idle_team.IdleTeam(), resource.getrlimit(resource.RLIMIT_AS)[1]
assert idle_team.can_help()
resource.setrlimit(resource.RLIMIT_AS, (present + (20 << 20), hard))  # of two stacks
team.begin()
print(team.begun)
"""


def test_a_limit_that_is_out_of_sight_does_not_end_the_process() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_SIGHT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "False\n", done.stderr


def test_where_no_thread_can_start_nothing_is_begun_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    team, watching = IdleTeam(), Neighbours()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        team.begin()
        watching.watch()
        assert not team.begun
    watching.watch()
    assert len(named("bestof-neighbours")) == 1
    watching.leave()


def test_the_team_alone_is_more_than_the_processors_of_the_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_team, "_PROCESSORS", 7)
    assert idle_team._size() == max(7, len(os.sched_getaffinity(0))) + 1


def test_the_team_comes_and_goes_with_the_neighbours() -> None:
    watching, before = Neighbours(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for waited in (0.5, 0.08, 0.5):
            watching.look(waited)
        assert not watching.team.begun  # two looks in a row tell that there are neighbours
        watching.look(0.5)
        assert watching.team.begun
        assert watching.waited == 0.5
        watching.look(0.08)
        assert watching.team.begun  # between both bounds, nothing is changed
        assert watching.waited == 0.5
        watching.look(0.01)
        assert not watching.team.begun
        assert watching.waited == 0.0
        torch.set_num_threads(1)
        watching.look(0.5)
        watching.look(0.5)
        assert not watching.team.begun  # one thread waits for no other
        assert watching.waited == 0.0
    finally:
        torch.set_num_threads(before)
        watching.leave()


def test_a_number_of_threads_that_is_set_after_the_first_look_is_seen() -> None:
    """A thread that has asked PyTorch for its number of threads gets the same one ever after."""
    watching, before = Neighbours(), torch.get_num_threads()
    with ThreadPoolExecutor(1) as watcher:
        try:
            torch.set_num_threads(1)
            watcher.submit(watching.look, 0.5).result()
            assert not watching.team.begun
            torch.set_num_threads(2)
            watcher.submit(watching.look, 0.5).result()
            assert watching.team.begun
        finally:
            torch.set_num_threads(before)
            watching.leave()


def test_the_time_of_waiting_is_read_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    shares: list[float] = []
    times = iter([{"1": (0, 0), "2": (0, 7)}, {"1": (0, 10**12), "3": (0, 5)}])
    monkeypatch.setattr(module, "PERIOD", 0.01)
    monkeypatch.setattr(module, "thread_times", lambda: next(times, {}))
    watching = Neighbours()

    def look(waited: float) -> None:
        shares.append(waited)
        looked.set()

    monkeypatch.setattr(watching, "look", look)
    watching.watch()
    assert looked.wait(60)
    watching.leave()
    assert shares == [1.0]  # 1,000 s of waiting, and nothing of the other threads


def first_look(
    watching: Neighbours, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Watch in this thread until a look tells anything. Return the shares that it told."""
    shares: list[float] = []

    def look(waited: float) -> None:
        shares.append(waited)
        stop.set()

    monkeypatch.setattr(watching, "look", look)
    watching._run(stop)
    return shares


def test_waiting_is_compared_with_the_time_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 threads that computed for an hour each, and waited for 0.1 % of it."""
    hour = 3600 * 10**9
    after = {str(one): (hour, hour // 1000) for one in range(64)}
    stop, watching = threading.Event(), Neighbours()
    watching._seen = dict.fromkeys(after, (0, 0))
    monkeypatch.setattr(module, "thread_times", lambda: after)
    shares = first_look(watching, stop, monkeypatch)
    assert shares == [pytest.approx(0.001, rel=0.01)]


@pytest.mark.parametrize("waited", [0, 1])
def test_a_look_at_an_idle_process_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, waited: int
) -> None:
    """A server computes 8 ms between two looks: the third look tells what all of them saw."""
    stop, watching = threading.Event(), Neighbours()
    each = 8_000_000
    times = iter([{"1": (one * each * (1 - waited), one * each * waited)} for one in range(1, 4)])
    watching._seen = {"1": (0, 0)}
    monkeypatch.setattr(module, "PERIOD", 0.0)
    monkeypatch.setattr(module, "thread_times", lambda: next(times))
    shares = first_look(watching, stop, monkeypatch)
    assert shares == [waited]
    assert next(times, None) is None


def test_a_thread_that_began_after_the_watch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread of a server sleeps, and threads that begin later compute."""
    stop, watching = threading.Event(), Neighbours()
    looks = iter([{"1": (5, 0), "2": (0, 3600 * 10**9)}])
    watching._seen = {"1": (0, 0)}
    monkeypatch.setattr(module, "PERIOD", 0.0)

    def times() -> dict[str, tuple[int, int]]:
        found = next(looks, None)
        if found is None:  # nobody was told: the test must not hang
            stop.set()
        return found or {}

    monkeypatch.setattr(module, "thread_times", times)
    shares: list[float] = []
    monkeypatch.setattr(watching, "look", shares.append)
    watching._run(stop)
    assert shares == [pytest.approx(1.0)]


@pytest.mark.parametrize("end", [Neighbours.leave, lambda one: one.refuse(True)])
def test_neighbours_that_nobody_watches_are_forgotten(end: Callable[[Neighbours], None]) -> None:
    watching = Neighbours()
    watching.waited = 0.5
    end(watching)
    assert watching.waited == 0.0


@pytest.mark.parametrize("computes", [True, False])
def test_the_team_of_a_process_that_rests_ends_after_some_looks(
    monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    """Threads that wake after a rest wait for each other: that alone must not keep the team."""
    stop, watching, looks = threading.Event(), Neighbours(), 0
    each = 10**10 if computes else 10**8  # ns of running, and as many of waiting

    def times() -> dict[str, tuple[int, int]]:
        nonlocal looks
        looks += 1
        if looks == 3 * module.RESTED or not watching.team.begun:
            stop.set()
        return {"1": (looks * each, looks * each)}

    clock = itertools.count(1.0, 1.0)
    monkeypatch.setattr(module, "PERIOD", 0.0)
    monkeypatch.setattr(module, "monotonic", lambda: next(clock))
    monkeypatch.setattr(module, "thread_times", times)
    monkeypatch.setattr(watching, "look", lambda waited: None)
    watching._seen = {"1": (0, 0)}
    watching.team.begin()
    try:
        watching._run(stop)
        assert watching.team.begun == computes
        assert looks == (3 * module.RESTED if computes else module.RESTED + 1)
    finally:
        watching.team.end()


def test_the_watching_thread_does_not_watch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own, hour = str(threading.get_native_id()), 3600 * 10**9
    stop, watching = threading.Event(), Neighbours()
    watching._seen = {own: (0, 0), "1": (0, 0)}
    monkeypatch.setattr(module, "thread_times", lambda: {own: (0, hour), "1": (hour, 0)})
    shares = first_look(watching, stop, monkeypatch)
    assert shares == [0.0]


def test_this_system_tells_how_long_threads_have_run_and_waited() -> None:
    times = module.thread_times()
    ran, waited = times[str(os.getpid())]
    assert ran > 0
    assert waited >= 0


def test_enable_watches_and_disable_leaves() -> None:
    integration.enable({"threads": {"neighbours": False}})
    assert not named("bestof-neighbours")
    integration.enable()
    integration.enable()
    assert len(named("bestof-neighbours")) == 1
    integration.disable()
    with integration.enabled():  # a block starts no thread
        assert len([one for one in named("bestof-neighbours") if one.is_alive()]) <= 1
    integration.enable()
    assert len(named("bestof-neighbours")) == 1


def test_a_plan_is_watched_as_long_as_it_lives() -> None:
    model, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    plan = integration.optimize(model, x, tune=False)
    (thread,) = named("bestof-neighbours")
    integration.enable()
    integration.disable()
    assert named("bestof-neighbours") == [thread]
    integration.enable({"threads": {"neighbours": False}})
    integration.optimize(model, x, tune=False)
    assert not named("bestof-neighbours")
    integration.disable()
    again = copy.deepcopy(plan)
    assert len(named("bestof-neighbours")) == 1
    del plan, again
    gc.collect()
    assert not NEIGHBOURS._watchers


def test_a_refusal_holds_in_a_forked_process() -> None:
    watching = Neighbours()
    watching.refuse(True)
    watching.rest()
    watching.forget()
    watching.watch()
    assert not named("bestof-neighbours")


def test_a_plan_that_the_watching_thread_collects_is_left_at_once() -> None:
    watching = Neighbours()
    watching.watch()
    watching._thread = threading.current_thread()
    began = time.monotonic()
    watching.leave()
    assert time.monotonic() - began < module.PATIENCE / 2


def test_a_forked_process_starts_anew() -> None:
    watching = Neighbours()
    watching.watch()
    watching.look(1.0)
    watching.look(1.0)
    stop, team = watching._stop, watching.team
    watching.forget()  # what a fork calls in the child, where no thread of the parent exists
    assert not watching.watches
    assert not watching.team.begun
    stop.set()
    team.end()


def test_the_system_has_no_watching_thread_while_it_rests() -> None:
    watching, before = Neighbours(), tasks()
    watching.watch()
    assert tasks() == before + 1
    watching.rest()
    assert tasks() == before
    watching.resume()
    assert tasks() == before + 1
    watching.leave()
    assert tasks() == before
    watching.rest()
    watching.resume()
    assert tasks() == before  # nothing begins that was not there


def test_a_fork_prevents_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that forks twice a second is watched all the same."""
    looked = threading.Event()
    watching = Neighbours()
    hours = itertools.count(0, 3600 * 10**9)
    monkeypatch.setattr(module, "thread_times", lambda: {"1": (next(hours), 0)})
    monkeypatch.setattr(watching, "look", lambda waited: looked.set())
    watching.watch()
    watching.rest()
    watching._looked -= 1.5 * module.PERIOD  # the last look was so long ago
    monkeypatch.setattr(module, "PERIOD", 1000.0)
    watching.resume()
    assert not looked.wait(0.05)
    watching.rest()
    watching._looked -= 1000.0
    watching.resume()
    assert looked.wait(60)
    watching.leave()


FORKING = """
import copy
import gc
import os
os.register_at_fork(before=lambda: print(len(os.listdir("/proc/self/task"))))  # called last
import numpy, torch
from torch.utils.data import DataLoader
if {tuned}:
    threads = torch.get_num_threads()
    import bestof.torch
    bestof.torch.enable()
    assert torch.get_num_threads() == threads
print(sum(int(x.sum()) for x in DataLoader(torch.ones(8, 3), num_workers=2)))
"""


def test_a_loader_forks_as_few_threads_as_without_bestof() -> None:
    """Python 3.12 and newer warn if a process of more than one thread forks."""
    found = []
    for tuned in (False, True):
        program = [sys.executable, "-W", "error:This process:DeprecationWarning", "-c"]
        done = subprocess.run(
            [*program, FORKING.format(tuned=tuned)],
            env=os.environ | {"BESTOF_STORE": "off"},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        found.append(done.stdout.split())
    assert found[1] == found[0]
    assert found[1][-1] == "24"
