"""Fan-out: the same work over many items, one after the other in this process, or side by side on Ray."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from forsaken.errors import ForsakenError, SettingsError, UnknownNameError
from forsaken.types import Progress, Tick, silent

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("local", "ray", "ray://host:port")
RETRIES = 3  # how often the work on an item is begun again when the process that does it dies
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
) -> list[R]:
    """Return ``[work(item) for item in items]``, with the same results on every engine.

    Parameters
    ----------
    work : callable
        Takes one item. It may be run again for an item whose process died, so it must not count on running once:
        what it returns is counted once, and files that it writes should replace themselves.
    items : sequence
        What to work on; results come in this order.
    engine : str
        "local": in this process, one after the other, since torch uses all cores already. "ray": on the Ray that this
        process is connected to, or the one that RAY_ADDRESS names, or a new one on this machine that ends with the
        call. "ray://host:port": on the cluster there, whose machines need this package too.
    workers : int, optional
        The most items at a time; by default as many as Ray has room for. A task takes one CPU.
    gpus : float
        The share of a GPU that a task takes on Ray.
    progress, stage
        Who is told about each finished item, and under which name.

    Notes
    -----
    An error of `work` is raised as itself, and what has not finished is cancelled. Sums in torch depend on the number
    of threads, so a task uses as many as this process does: call ``torch.set_num_threads(1)`` beforehand where many
    tasks share a machine.
    """
    check_engine(engine)
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers!r}, expected a whole number >= 1")
    if not items:
        return []
    if engine == "local":
        results = []
        for done, item in enumerate(items, start=1):
            results.append(work(item))
            progress(Tick(stage, done, len(items)))
        return results
    ray = _ray()
    with _connected(ray, engine, workers):
        _check_room(ray, gpus)
        return _on_ray(ray, work, items, workers or len(items), gpus, progress, stage)


def check_engine(engine: object) -> None:
    """Raise an `UnknownNameError` unless `engine` is "local", "ray" or an address that begins with ray://."""
    remote = isinstance(engine, str) and engine.startswith(_REMOTE) and len(engine) > len(_REMOTE)
    if engine not in ("local", "ray") and not remote:
        raise UnknownNameError("engine", engine, ENGINES)


def _on_ray(
    ray: Any,
    work: Callable[[T], R],
    items: Sequence[T],
    at_once: int,
    gpus: float,
    progress: Progress,
    stage: str,
) -> list[R]:
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_outcome)
    shared = ray.put(work)  # once, however many items: work often carries data
    threads = torch.get_num_threads()
    waiting = iter(enumerate(items))
    results: dict[int, R] = {}
    running: dict[Any, int] = {}
    try:
        while len(results) < len(items):
            while len(running) < at_once and (following := next(waiting, None)) is not None:
                running[task.remote(shared, following[1], threads)] = following[0]
            (finished, *_), _ = ray.wait(list(running))
            at = running.pop(finished)
            results[at] = _received(ray, finished, at)
            progress(Tick(stage, len(results), len(items)))
    finally:
        for unfinished in running:
            ray.cancel(unfinished, force=True)
    return [results[at] for at in range(len(items))]


def _outcome(work: Callable[[Any], Any], item: Any, threads: int) -> tuple[bool, Any]:
    """Do the work on a Ray worker; an error travels in parts, since not every error can be pickled whole."""
    torch.set_num_threads(threads)
    try:
        return True, work(item)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is raised again where the work was asked for)
        where = "".join(traceback.format_tb(error.__traceback__))
        return False, (type(error), error.args, dict(error.__dict__), where)


def _received(ray: Any, finished: Any, at: int) -> Any:
    try:
        fine, value = ray.get(finished)
    except ray.exceptions.RayTaskError as error:  # the work itself tells its errors; this is about reaching it
        raise ForsakenError(
            f"Ray could not begin item {at} ({_last_line(error)}); is what the work needs installed on every worker?"
        ) from error
    except ray.exceptions.RayError as error:
        raise ForsakenError(
            f"the process that worked on item {at} died, {RETRIES + 1} times over ({type(error).__name__}); look for "
            'lack of memory, or use engine="local"'
        ) from error
    if fine:
        return value
    kind, arguments, state, where = value
    raised = kind.__new__(kind, *arguments)
    raised.args = arguments
    raised.__dict__.update(state)
    raised.add_note(f"raised on a Ray worker:\n{where}")
    raise raised


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise SettingsError(
            "engine=\"ray\" needs Ray, which is not installed; run: pip install 'forsaken[ray]' (or pip install ray)"
        ) from error


@contextmanager
def _connected(ray: Any, engine: str, workers: int | None) -> Iterator[None]:
    """Connect to a Ray, or start one; what was there before stays there."""
    if ray.is_initialized():
        if engine != "ray":
            raise SettingsError(f'this process is connected to a Ray already; use engine="ray" for it, not {engine!r}')
        yield
        return
    address = engine if engine.startswith(_REMOTE) else os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "error"}
    with _environment("RAY_USAGE_STATS_ENABLED", "0"):
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
    try:
        yield
    finally:
        ray.shutdown()


def _check_room(ray: Any, gpus: float) -> None:
    there = ray.cluster_resources().get("GPU", 0.0)
    if there < gpus:
        raise SettingsError(f"a task needs {gpus:g} GPU, but Ray has {there:g}; train on the CPU, or add a GPU to Ray")


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment inside the block."""
    was = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if was is None:
            del os.environ[name]
        else:
            os.environ[name] = was
