"""Several studies of out_of_fold.py at once on one GPU: many processes that fill one folder from one queue.

    FORSAKEN_DATA=... python benchmarks/pool.py --seconds 570 --studies c10-t:confirm:12 news-id:confirm

A study is TASK:ROWS or TASK:ROWS:EPOCHS. Each is cut into shares (`out_of_fold.py --share`); as soon as all of its
shares are there, its result is written. When the time is up everything is stopped, and it exits with 1; the same
command goes on where it was: models that are in the folder are not trained again, unless the source was changed.
Studies that come first in the list are begun first. Start NVIDIA's MPS daemon before it
(`nvidia-cuda-mps-control -d`), or processes take turns on the GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from common import RESULTS
from out_of_fold_rows import PICTURES

STUDY = Path(__file__).with_name("out_of_fold.py")
PAUSE, LONGEST, PATIENCE = 0.2, 3600.0, 10.0


@dataclass(frozen=True)
class Job:
    """One process: a share of a study, or the study as a whole once its shares are there."""

    task: str
    rows: str
    epochs: str
    share: str = ""

    @property
    def name(self) -> str:
        """Return a name that can be a file's."""
        return "-".join(filter(None, (self.task, self.rows, self.epochs, self.share.replace("/", "-of-"))))

    @property
    def study(self) -> Job:
        """Return what this is a share of."""
        return Job(self.task, self.rows, self.epochs)

    def command(self, options: argparse.Namespace) -> list[str]:
        """Return the command line."""
        words = [sys.executable, str(STUDY), "--task", self.task, "--rows", self.rows, "--device", options.device]
        words += ["--seed", str(options.seed), "--models", str(options.models)]
        words += ["--folder", str(options.folder / "models"), "--results", str(options.results)]
        words += ["--epochs", self.epochs] if self.epochs else []
        return words + (["--share", self.share] if self.share else [])


@dataclass
class Pool:
    """What waits, what runs and what is done."""

    options: argparse.Namespace
    waiting: list[Job]
    running: dict[Job, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.options.folder / "logs").mkdir(parents=True, exist_ok=True)

    def _may_start(self, job: Job) -> bool:
        unfinished = [*self.waiting, *self.running, *self.failed]
        if not job.share and any(other.study == job and other.share for other in unfinished):
            return False  # every share first
        pictures = sum(other.task.startswith(PICTURES) for other in self.running)
        return not job.task.startswith(PICTURES) or pictures < self.options.pictures

    def _start(self, job: Job) -> None:
        log = (self.options.folder / "logs" / f"{job.name}.log").open("ab")
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = job.command(self.options)
        self.running[job] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)  # noqa: S603 our own script

    def step(self) -> bool:
        """Take note of what ended, start what may start, and return whether anything is left to wait for."""
        for job, process in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[job]
            if process.returncode:
                self.failed.append(job)
                print(f"{job.name} failed with {process.returncode}: see its log", flush=True)
        for job in list(self.waiting):
            if len(self.running) >= self.options.workers:
                break
            if self._may_start(job):
                self.waiting.remove(job)
                self._start(job)
        return bool(self.running)

    def stop(self) -> None:
        """Stop everything that runs."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def queue(studies: list[str], shares: int) -> list[Job]:
    """Return the jobs: a study's result before its shares, so that it is written as soon as they are there."""
    found = []
    for study in dict.fromkeys(studies):
        whole = Job(*[*study.split(":"), ""][:3])
        parts = 2 * shares if whole.task.startswith(PICTURES) else shares  # fewer of them run at a time
        found += [whole, *(Job(whole.task, whole.rows, whole.epochs, f"{at}/{parts}") for at in range(parts))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", required=True, help="TASK:ROWS or TASK:ROWS:EPOCHS")
    parser.add_argument("--seconds", type=float, default=LONGEST, help="when to stop")
    parser.add_argument("--workers", type=int, default=16, help="processes at a time")
    parser.add_argument("--pictures", type=int, default=5, help="of them on pictures, at most")
    parser.add_argument("--shares", type=int, default=8, help="parts of a study; of one on pictures twice as many")
    parser.add_argument("--models", type=int, default=16, help="originals of a study")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, default=Path("runs/pool"), help="for margins and logs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    asked = [study.split(":") for study in dict.fromkeys(options.studies)]
    if any(not 2 <= len(words) <= 3 for words in asked):
        parser.error(f"a study is TASK:ROWS or TASK:ROWS:EPOCHS, not as in {' '.join(options.studies)}")
    if len({tuple(words[:2]) for words in asked}) < len(asked):
        parser.error("two studies would write the same file: give each TASK:ROWS once")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started is stopped too
    end = time.monotonic() + options.seconds
    pool = Pool(options, queue(options.studies, options.shares))
    try:
        while pool.step() and time.monotonic() < end:
            time.sleep(PAUSE)
    finally:
        pool.stop()
    left = Counter(job.study.name for job in [*pool.waiting, *pool.running, *pool.failed])
    print("all done" if not left else "left: " + ", ".join(f"{name} {count}" for name, count in left.items()))
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
