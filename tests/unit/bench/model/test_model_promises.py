"""The promises for whole models, beside made-up measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bestof.bench.model.job import Job
from bestof.bench.model.promises import (
    PRICED,
    PROMISES,
    THREADS,
    promised_jobs,
    reaches,
    tuning_price,
)
from bestof.bench.model.result import ModelTimes, PeerTime
from bestof.bench.reach import Reach

EAGER = PeerTime("eager", "PyTorch eager, channels first", False, 0.5)
LAST = PeerTime("eager-last", "PyTorch eager, channels last", False, 0.4)
COMPILED = PeerTime("compile", "torch.compile", False, 0.2)
ENABLE = PeerTime("enable", "bestof enable", True, 0.1, ratio=2.1, low=1.9, high=2.2, settled=True)
OPTIMIZE = PeerTime("optimize", "bestof optimize", True, 0.1, ratio=2.1, low=1.9, high=2.2)
RELAXED = PeerTime(
    "optimize-relaxed", "bestof optimize, relaxed", True, 0.05, ratio=4.2, low=4.0, high=4.3
)


def test_inference_is_held_against_the_best_of_all_by_the_rounds() -> None:
    times = ModelTimes(Job("vgg16", 1, THREADS), "compile", (EAGER, COMPILED, OPTIMIZE, RELAXED))
    what = "vgg16 inference, batch 1, 2 threads"
    assert reaches([times]) == (
        Reach(f"{what}: bestof optimize over torch.compile", 1.25, 2.1, 1.9, 2.2),
        Reach(f"{what}: bestof optimize, relaxed over torch.compile", 1.4, 4.2, 4.0, 4.3),
    )


@pytest.mark.parametrize(("dtype", "ratio"), [("float32", 1.1), ("bfloat16", 1.05)])
def test_models_of_linear_layers_have_a_promise_for_each_type(dtype: str, ratio: float) -> None:
    job = Job("vit-b", 8, THREADS, dtype=dtype)
    (reach,) = reaches([ModelTimes(job, "compile", (EAGER, COMPILED, OPTIMIZE))])
    assert (reach.reach, reach.reached) == (ratio, 2.1)
    assert job not in promised_jobs()


def test_a_plan_is_to_take_no_more_memory_than_pytorch_as_it_is() -> None:
    eager, ours = replace(EAGER, peak_bytes=1000), replace(OPTIMIZE, peak_bytes=1200)
    what = (
        "vgg16 inference, batch 1, 2 threads: memory of bestof optimize over PyTorch eager, "
        "channels first"
    )
    job = Job("vgg16", 1, THREADS)
    assert Reach(what, 1.1, 1.2, most=True) in reaches(
        [ModelTimes(job, "eager", (eager, ours, RELAXED))]
    )
    assert not any(
        "memory" in one.what for one in reaches([ModelTimes(job, "eager", (EAGER, ours))])
    )
    job = Job("vgg16", 3, THREADS)  # of which nothing is promised
    assert reaches([ModelTimes(job, "eager", (eager, ours))]) == ()


def test_small_layers_are_held_by_least_times_and_by_medians_beside_busy_processes() -> None:
    peers = (replace(COMPILED, least=0.11), replace(EAGER, least=0.3), replace(OPTIMIZE, least=0.1))
    (reach,) = reaches([ModelTimes(Job("mobilenet_v2", 8, THREADS), "compile", peers)])
    assert reach.what.endswith("bestof optimize over torch.compile, least times")
    assert (reach.reach, reach.met) == (1.15, False)
    assert reach.reached == pytest.approx(1.1)
    busy = Job("mobilenet_v2", 1, THREADS, beside=3)
    (reach,) = reaches([ModelTimes(busy, "compile", peers)])
    assert (reach.reach, reach.reached) == (1.0, 2.1)
    assert reach.what.startswith("mobilenet_v2 inference, batch 1, 2 threads, beside 3 busy")
    assert {0, 1, 3} == {job.beside for job in promised_jobs()}


def test_training_is_held_against_the_better_eager_layout() -> None:
    peers = (EAGER, LAST, COMPILED, ENABLE, replace(ENABLE, name="enable-last", seconds=0.3))
    (reach,) = reaches([ModelTimes(Job("resnet34", 8, THREADS, train=True), "compile", peers)])
    assert reach.what.endswith("bestof enable over PyTorch eager, channels last")
    assert (reach.reach, reach.low, reach.met) == (1.6, None, True)
    assert reach.reached == pytest.approx(
        4.0
    )  # of the medians: the rounds' ratios are against torch.compile


def test_the_price_of_tuning_is_what_unsettled_steps_took_beyond_settled_ones() -> None:
    # 10 steps: 9 settled ones' time too much; 240 steps of 0.1 s.
    peer = replace(ENABLE, first_seconds=(0.7, 0.4) + (0.1,) * 8)
    assert tuning_price(peer) == pytest.approx(0.9 / 24)
    assert tuning_price(replace(peer, settled=False)) is None
    assert tuning_price(replace(peer, first_seconds=(0.1,) * 241)) is None
    (_, price) = reaches([ModelTimes(PRICED, "eager", (EAGER, LAST, peer))])
    assert (price.most, price.met, price.reach) == (True, False, 0.03)


def test_promises_without_measurements_are_not_reported() -> None:
    broken = replace(OPTIMIZE, seconds=None, reason="it died")
    assert reaches([ModelTimes(Job("vgg16", 1, THREADS), "eager", (EAGER, broken))]) == ()
    assert reaches([ModelTimes(Job("vgg16", 1, 1), "eager", (EAGER, OPTIMIZE))]) == ()
    assert reaches([ModelTimes(Job("vgg16", 1, THREADS), None, (OPTIMIZE,))]) == ()


def test_a_figure_that_is_no_number_is_missed() -> None:
    assert not Reach("it", 1.0, float("nan")).met
    assert not Reach("it", 1.0, float("nan"), most=True).met


def test_every_promised_job_once() -> None:
    jobs = promised_jobs()
    assert len(set(jobs)) == len(jobs)
    assert set(jobs) >= {promise.job for promise in PROMISES}


def test_small_plans_are_to_be_equally_fast_and_near_the_peak() -> None:
    peers = tuple(replace(OPTIMIZE, seconds=0.1 + 0.001 * number) for number in range(10))
    (apart,) = reaches([ModelTimes(Job("mobilenet_v2", 1, THREADS, plans=10), None, peers)])
    assert (
        apart.what
        == "mobilenet_v2 inference, batch 1, 2 threads, 10 processes: slowest over fastest"
    )
    assert (apart.most, apart.reach, apart.reached) == (True, 1.05, pytest.approx(1.09))
    assert reaches([ModelTimes(Job("mobilenet_v2", 1, THREADS, plans=10), None, peers[1:])]) == ()
    job, peers = Job("resnext50", 8, THREADS), (replace(OPTIMIZE, least=0.1),)
    (share,) = reaches([ModelTimes(job, None, peers, bound=0.05)])
    assert (share.most, share.reach, share.reached) == (False, 0.6, pytest.approx(0.5))


def test_beside_a_busy_process_two_threads_are_held_against_one_idle_thread() -> None:
    busy, idle = Job("squeezenet", 1, THREADS, beside=1), Job("squeezenet", 1, 1)
    results = [
        ModelTimes(busy, None, (replace(OPTIMIZE, seconds=0.3),)),
        ModelTimes(idle, None, (replace(OPTIMIZE, seconds=0.2),)),
    ]
    (reach,) = reaches(results)
    assert reach.what.endswith("beside 1 busy process: over one idle thread")
    assert (reach.most, reach.reach, reach.reached) == (True, 1.1, pytest.approx(1.5))
    assert reaches(results[:1]) == ()
