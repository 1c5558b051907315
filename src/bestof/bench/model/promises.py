"""The promises for whole models, and how measurements compare with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bestof.bench.model.job import Job
from bestof.bench.model.result import ModelTimes, PeerTime
from bestof.bench.reach import Reach

THREADS = 2
# The setting of the BestOf paper: tuning is paid once in a training of this many steps.
PRICE_STEPS = 240
PRICE = 0.03
# Memory of the process at the peak of a call, over that of PyTorch eager. A plan has packed weights
# in place of the model's, and imports what traces.
MEMORY = 1.1
# The slowest over the fastest of so many processes, each of which makes a plan of its own.
PLANS, APART = 10, 1.05
# A plan of two threads beside one busy process, over the same plan on one idle thread.
IDLE = 1.1


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise for one job: the best of `ours` is `ratio` times as fast as the best of `against`.

    An empty `against` stands for all other peers. `by_least`: the least times count, which
    neighbours on a shared machine disturb least, instead of the medians.
    """

    job: Job
    ours: tuple[str, ...]
    ratio: float
    against: tuple[str, ...] = ()
    by_least: bool = False


def _inference(
    model: str, batch: int, ratio: float, peer: str = "optimize", dtype: str = "float32"
) -> Promise:
    return Promise(Job(model, batch, THREADS, dtype=dtype), (peer,), ratio)


def _training(model: str, batch: int, ratio: float) -> Promise:
    # `enable` replaces PyTorch eager, and the user chooses the layout. So the better layout of each
    # counts.
    job = Job(model, batch, THREADS, train=True)
    return Promise(job, ("enable", "enable-last"), ratio, ("eager", "eager-last"))


# Networks of small layers, and how many times as fast as the best peer they are to be.
_SMALL = {
    "mobilenet_v2": 1.15,
    "mobilenet_v3": 1.15,
    "efficientnet_b0": 1.15,
    "regnetx_400mf": 1.15,
    "resnext50": 1.15,
    "se_resnet50": 1.15,
    "shufflenet_v2": 1.1,
    "squeezenet": 1.2,
    "densenet121": 1.3,
}


# The share of the time that the direct algorithms need at the peak of the processor.
_SHARES = {"vgg16": 0.85, "resnet34": 0.85, "resnet50": 0.85, **dict.fromkeys(_SMALL, 0.6)}
_STEADY = tuple(
    Job(model, 1, THREADS, plans=PLANS)
    for model in ("mobilenet_v2", "mobilenet_v3", "efficientnet_b0", "resnext50")
)


def _small() -> Iterator[Promise]:
    """Yield the promises for networks of small layers: quiet, and beside busy processes."""
    for model, ratio in _SMALL.items():
        for batch in (1, 8):
            yield Promise(Job(model, batch, THREADS), ("optimize",), ratio, by_least=True)
        for beside in (1, 3):
            yield Promise(Job(model, 1, THREADS, beside=beside), ("optimize",), 1.0)


PROMISES = (
    _inference("vgg16", 1, 1.25),
    _inference("vgg16", 1, 1.4, "optimize-relaxed"),
    _inference("vgg16", 8, 1.6),
    _inference("vgg16", 8, 1.8, "optimize-relaxed"),
    _inference("resnet34", 1, 1.7),
    _inference("resnet34", 8, 1.9),
    _inference("resnet50", 1, 1.1),
    _inference("resnet50", 8, 1.1),
    _inference("mobilenet_v2", 1, 1.05, dtype="bfloat16"),
    _inference("resnet50", 1, 1.05, dtype="bfloat16"),
    _inference("resnet34", 1, 1.4, dtype="bfloat16"),
    _inference("vgg16", 1, 1.3, dtype="bfloat16"),
    _training("vgg16-cifar", 64, 2.0),
    _training("vgg16", 8, 2.2),
    _training("resnet34", 8, 1.6),
    *_small(),
)
# Models of linear layers. `--reach` leaves them out: it would take twice as long.
LINEAR_PROMISES = tuple(
    _inference(model, batch, ratio, dtype=dtype)
    for model in ("bert-base", "vit-b", "convnext")
    for batch in (1, 8)
    for dtype, ratio in (("float32", 1.1), ("bfloat16", 1.05))
)
PRICED = Job("vgg16-cifar", 64, THREADS, train=True)


def promised_jobs() -> tuple[Job, ...]:
    """Return every job that `--reach` measures, once."""
    idle = [Job(model, 1, 1) for model in _SMALL]
    return tuple(dict.fromkeys((*(promise.job for promise in PROMISES), *idle, *_STEADY)))


def promised_peers(job: Job) -> tuple[str, ...]:
    """Return the names of the peers that a promise compares.

    Those that compile for minutes are left out: `torch.compile`, with `max-autotune` too, and
    zentorch were the best of no network of convolutions in float32. ncnn and the other layout of
    PyTorch were the best of no network of small layers.
    """
    if job.train:
        return "eager", "eager-last", "enable", "enable-last"
    if job.threads < THREADS or job.plans > 1:
        return ("optimize",)
    ours = {name for promise in PROMISES if promise.job == job for name in promise.ours}
    others = () if job.model in _SMALL else ("eager-last", "ncnn")
    return "eager", *others, "openvino", "onnxruntime", *sorted(ours)


def reaches(results: Iterable[ModelTimes]) -> tuple[Reach, ...]:
    """Return every promise for which there are results."""
    every = tuple(results)
    return (*(reach for one in every for reach in _reaches(one)), *_beside_idle(every))


def _reaches(times: ModelTimes) -> Iterator[Reach]:
    for promise in (*PROMISES, *LINEAR_PROMISES):
        if promise.job == times.job:
            found = _ratio(times, promise)
            if found is not None:
                yield found
    if times.job in promised_jobs():
        yield from _memory(times)
        yield from _share(times)
        yield from _apart(times)
    if times.job == PRICED:
        for peer in times.peers:
            if peer.ours and (price := tuning_price(peer)) is not None:
                yield Reach(
                    f"{times.job}: tuning by {peer.label}, of {PRICE_STEPS} steps",
                    PRICE,
                    price,
                    most=True,
                )


def _ratio(times: ModelTimes, promise: Promise) -> Reach | None:
    mine = [peer for peer in times.peers if peer.name in promise.ours]
    others = [
        peer
        for peer in times.peers
        if not peer.ours and (not promise.against or peer.name in promise.against)
    ]
    if promise.by_least:
        return _least_ratio(times, promise, mine, others)
    ours, theirs = _fastest(mine), _fastest(others)
    if ours is None or theirs is None or ours.seconds is None or theirs.seconds is None:
        return None
    what = f"{times.job}: {ours.label} over {theirs.label}"
    if theirs.name == times.best and ours.ratio is not None:
        return Reach(what, promise.ratio, ours.ratio, ours.low, ours.high)
    return Reach(what, promise.ratio, theirs.seconds / ours.seconds)


def _least_ratio(
    times: ModelTimes, promise: Promise, mine: Sequence[PeerTime], others: Sequence[PeerTime]
) -> Reach | None:
    ours, theirs = (_fastest(one, lambda peer: peer.least) for one in (mine, others))
    if ours is None or theirs is None or not ours.least or not theirs.least:
        return None
    what = f"{times.job}: {ours.label} over {theirs.label}, least times"
    return Reach(what, promise.ratio, theirs.least / ours.least)


def _memory(times: ModelTimes) -> Iterator[Reach]:
    """Yield the memory of a released plan at the peak of a call, over that of PyTorch eager."""
    took = {peer.name: peer for peer in times.peers if peer.peak_bytes}
    ours, theirs = took.get("optimize"), took.get("eager")
    if ours is not None and theirs is not None:
        what = f"{times.job}: memory of {ours.label} over {theirs.label}"
        yield Reach(what, MEMORY, (ours.peak_bytes or 0) / (theirs.peak_bytes or 1), most=True)


def _share(times: ModelTimes) -> Iterator[Reach]:
    """Yield the share of the peak that a plan reaches, in multiply-adds of direct algorithms."""
    job, ours = times.job, next((one for one in times.peers if one.name == "optimize"), None)
    quiet = job.threads == THREADS and not job.beside
    if quiet and times.bound is not None and ours is not None and ours.least:
        what = f"{job}: share of the peak by {ours.label}"
        yield Reach(what, _SHARES[job.model], times.bound / ours.least)


def _apart(times: ModelTimes) -> Iterator[Reach]:
    """Yield the slowest over the fastest of the plans that took turns, by medians."""
    seconds = [peer.seconds for peer in times.peers if peer.ours and peer.seconds is not None]
    if times.job.plans > 1 and len(seconds) == times.job.plans:
        what = f"{times.job}: slowest over fastest"
        yield Reach(what, APART, max(seconds) / min(seconds), most=True)


def _beside_idle(results: Sequence[ModelTimes]) -> Iterator[Reach]:
    """Yield the times beside one busy process over those of one idle thread, by medians."""
    took = {
        one.job: peer.seconds
        for one in results
        for peer in one.peers
        if peer.name == "optimize" and peer.seconds is not None and one.job.plans == 1
    }
    for job, seconds in took.items():
        alone = took.get(replace(job, threads=1, beside=0))
        if job in promised_jobs() and job.beside == 1 and alone is not None:
            yield Reach(f"{job}: over one idle thread", IDLE, seconds / alone, most=True)


def _fastest(
    peers: Sequence[PeerTime],
    time: Callable[[PeerTime], float | None] = lambda peer: peer.seconds,
) -> PeerTime | None:
    """Return the peer with the shortest of these times; None if no peer has one."""
    timed = [(seconds, peer) for peer in peers if (seconds := time(peer)) is not None]
    return min(timed, key=lambda pair: pair[0], default=(0.0, None))[1]


def tuning_price(peer: PeerTime) -> float | None:
    """Return the extra time of unsettled steps, divided by that of PRICE_STEPS settled ones.

    Return None if the peer did not settle, or needed more steps to settle.
    """
    if peer.seconds is None or not peer.settled or not 0 < len(peer.first_seconds) <= PRICE_STEPS:
        return None
    return (sum(peer.first_seconds) - len(peer.first_seconds) * peer.seconds) / (
        PRICE_STEPS * peer.seconds
    )
