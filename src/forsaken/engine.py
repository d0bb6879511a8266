"""Fan-out: the same work on many items, one after the other, side by side on this machine, or on Ray."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from forsaken.errors import ForsakenError, SettingsError, UnknownNameError
from forsaken.types import Progress, Tick, silent

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("local", "processes", "ray", "ray://host:port")
RETRIES = 3  # how often an item is started again after its worker process died
_REMOTE = "ray://"


def fan_out(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    engine: str = "local",
    workers: int | None = None,
    gpus: float = 0.0,
    progress: Progress = silent,
    stage: str = "work",
    received: Callable[[int, R], None] | None = None,
) -> list[R]:
    """Return ``[work(item) for item in items]``, with the same results on every engine.

    Parameters
    ----------
    work : callable
        Takes one item. On Ray an item is started again if its process dies, so `work` may run more than once for an
        item: its result is counted once, and a file that it writes should replace the file of an earlier attempt.
    items : sequence
        The arguments of `work`; results come in this order.
    engine : str
        "local": in this process, one after the other, since torch uses all cores already. "processes": side by side in
        processes of their own on this machine, from which small networks on a GPU gain most; one item, or one
        worker, is done in this process. "ray": on the Ray that this process is connected to, or the one that
        RAY_ADDRESS names, or a new one on this machine that ends with the call. "ray://host:port": on the cluster at
        that address, whose machines need this package too.
    workers : int, optional
        How many items may run at the same time; by default as many as there are cores, or as Ray has room for.
    gpus : float
        The share of a GPU that a task takes on Ray.
    progress, stage
        Called with a `Tick` under the name `stage` after each finished item.
    received : callable, optional
        Called here with the number of each item and its result as soon as it is there, so that what is done can be
        saved before all is done.

    Notes
    -----
    An error of `work` is raised here with its own type and attributes, and tasks that have not finished are cancelled.
    Sums in torch depend on the number of threads, so a task uses as many threads as this process: call
    ``torch.set_num_threads(1)`` first where many tasks share a machine.
    """
    check_engine(engine)
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers!r}, expected a whole number >= 1")
    if not items:
        return []
    results: dict[int, R] = {}

    def keep(at: int, result: R) -> None:
        results[at] = result
        if received is not None:
            received(at, result)
        progress(Tick(stage, len(results), len(items)))

    if engine == "local":
        for at, item in enumerate(items):
            keep(at, work(item))
    elif engine == "processes":
        _in_processes(work, items, workers or os.cpu_count() or 1, keep)
    else:
        _in_ray(work, items, engine, workers, gpus, keep)
    return [results[at] for at in range(len(items))]


def _in_ray(
    work: Callable[[T], R],
    items: Sequence[T],
    engine: str,
    workers: int | None,
    gpus: float,
    keep: Callable[[int, R], None],
) -> None:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise SettingsError(
            "engine=\"ray\" needs Ray, which is not installed; run: pip install 'forsaken[ray]' (or pip install ray)"
        ) from error
    with _connected(ray, engine, workers):
        available = ray.cluster_resources().get("GPU", 0.0)
        if available < gpus:
            raise SettingsError(
                f"a task needs {gpus:g} GPU, but Ray has {available:g}; train on the CPU, or add a GPU to Ray"
            )
        _on_ray(ray, work, items, workers or len(items), gpus, keep)


def check_engine(engine: object) -> None:
    """Raise an `UnknownNameError` unless `engine` is a name of `ENGINES` or an address that begins with ray://."""
    remote = isinstance(engine, str) and engine.startswith(_REMOTE) and len(engine) > len(_REMOTE)
    if engine not in ENGINES[:3] and not remote:
        raise UnknownNameError("engine", engine, ENGINES)


def _in_processes(work: Callable[[T], R], items: Sequence[T], at_once: int, keep: Callable[[int, R], None]) -> None:
    # joblib comes with scikit-learn, sends functions that pickle cannot, and notices a worker that dies. Its arrays
    # would be read-only pages of a file; max_nbytes=None sends them whole.
    run = delayed(_numbered)
    threads = torch.get_num_threads()
    pool = Parallel(n_jobs=min(at_once, len(items)), return_as="generator_unordered", max_nbytes=None, batch_size=1)
    try:
        for at, result in pool(run(work, at, item, threads) for at, item in enumerate(items)):
            keep(at, result)
    except TerminatedWorkerError as error:
        raise ForsakenError(
            f"a process died while it worked ({_last_line(error)}); look for lack of memory, give fewer workers, or "
            'use engine="local"'
        ) from error
    finally:
        torch.set_num_threads(threads)  # one item or one worker runs in this process, and `work` may change them
        # Idle workers would wait for five minutes for more work, and hold the memory of a GPU.
        get_reusable_executor(reuse=True).shutdown(kill_workers=True)


def _numbered(work: Callable[[T], R], at: int, item: T, threads: int) -> tuple[int, R]:
    return at, _run(work, item, threads)


def _on_ray(
    ray: Any, work: Callable[[T], R], items: Sequence[T], at_once: int, gpus: float, keep: Callable[[int, R], None]
) -> None:
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_run)
    shared = ray.put(work)  # sent once for all items: `work` often carries data
    threads = torch.get_num_threads()
    waiting = iter(enumerate(items))
    running: dict[Any, int] = {}
    try:
        for _ in items:
            while len(running) < at_once and (following := next(waiting, None)) is not None:
                running[task.remote(shared, following[1], threads)] = following[0]
            (finished, *_), _ = ray.wait(list(running))
            at = running.pop(finished)
            keep(at, _received(ray, finished, at))
    finally:
        for unfinished in running:
            ray.cancel(unfinished, force=True)


def _run(work: Callable[[T], R], item: T, threads: int) -> R:
    torch.set_num_threads(threads)
    return work(item)


def _received(ray: Any, finished: Any, at: int) -> Any:
    """Return the result of a finished task, or raise the error of the work itself."""
    errors = ray.exceptions
    try:
        return ray.get(finished)
    except errors.RayTaskError as error:
        if isinstance(error.cause, errors.RayError):  # `work` was not reached
            raise ForsakenError(
                f"Ray could not begin item {at} ({_last_line(error)}); is what the work needs installed on every "
                "worker?"
            ) from error
        error.cause.add_note(f"raised on a Ray worker:\n{error}")
        raise error.cause from None
    except errors.UnserializableException as error:
        raise ForsakenError(
            f"item {at} failed on a Ray worker with an error that cannot be sent here ({_last_line(error)}); "
            'see the error itself with engine="local"'
        ) from error
    except errors.RayError as error:
        raise ForsakenError(
            f"the process that worked on item {at} died, {RETRIES + 1} times over ({type(error).__name__}); look for "
            'lack of memory, or use engine="local"'
        ) from error


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


@contextmanager
def _connected(ray: Any, engine: str, workers: int | None) -> Iterator[None]:
    """Use the Ray that this process is connected to, or connect to one (or start one) for the block alone."""
    if ray.is_initialized():
        if engine != "ray":
            raise SettingsError(f'this process is connected to a Ray already; use engine="ray" for it, not {engine!r}')
        yield
        return
    address = engine if engine.startswith(_REMOTE) else os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "error"}
    statistics = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        if address:
            ray.init(address, **quiet)
        else:
            cores = max(workers or 1, os.cpu_count() or 1)
            ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
    except ImportError as error:
        raise SettingsError(f"{address} needs Ray's client; run: pip install 'ray[client]' ({error})") from error
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise SettingsError(
            f'no Ray at {address or "this machine"} ({_last_line(error)}); check the address, or use engine="local"'
        ) from error
    finally:
        if statistics is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = statistics
    try:
        yield
    finally:
        ray.shutdown()
