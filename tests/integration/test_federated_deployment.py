"""A real deployment on loopback: SuperLink and three SuperNodes as processes, of which some are killed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context

from forsaken.bench.federated import NODES, STRANGERS, build, fit_references, load_node, measure, rows_of
from forsaken.federated.app import client_app, run_rounds
from forsaken.federated.client import Node, parameters_of
from forsaken.federated.grid import InMemoryGrid
from forsaken.federated.strategy import STATE, MacForget

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def having(setting: str) -> list[int]:
    """Return the processes that were started with an environment variable of this value."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if setting.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def trained(folder: Path, rounds: int) -> None:
    """The first rounds, in this process: the deployment goes on from the state that they leave."""
    config = {"rounds": rounds, "folder": str(folder / "server"), "nodes": NODES, "nodes-folder": str(folder)}

    def load(context: Context) -> Node:
        return load_node(Context(1, context.node_id, context.node_config, context.state, run_config=dict(config)))

    run_rounds(InMemoryGrid(client_app(load), range(NODES)), build, config)


class Deployment:
    """The processes of a federation; each is the leader of a group of its own, which goes with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, *self.node_ports = free_ports(1 + NODES)
        home = folder / "flower"
        home.mkdir()  # the set-up of the example writes its own configuration there
        (home / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n')
        self.env = os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                env=self.env,
                cwd=self.folder,
                start_new_session=True,
            )

    def superlink(self) -> None:
        port = ("--host", "127.0.0.1", "--port", str(self.port))
        kept = ("--database", str(self.folder / "superlink.sqlite"))  # it knows its nodes again after a kill
        quiet = "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", "--insecure", *port, *kept, quiet)
        self.until(self.answers, "answer of the SuperLink", 60)

    def answers(self) -> bool:
        with socket.socket() as found:
            found.settimeout(1)
            return found.connect_ex(("127.0.0.1", self.port)) == 0

    def node(self, number: int) -> None:
        config = f'partition-id={number} folder="{self.folder / f"node-{number}"}"'
        port = ("--port", str(self.node_ports[number]))
        link = ("--superlink", f"127.0.0.1:{self.port}")
        self.start(f"node-{number}", "flower-supernode", "--insecure", *link, *port, "--node-config", config)

    def run(self, rounds: int) -> None:
        told = f'rounds={rounds} folder="{self.folder / "server"}" round-timeout=90'
        self.start("run", "flwr", "run", str(EXAMPLE), "loopback", "--stream", "--run-config", told)

    def kill(self, name: str) -> None:
        """End a process and everything that it started, as when its machine loses power."""
        process = self.running.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            end(pid)
        process.wait(20)

    def close(self) -> None:
        """End every process of this test: all of them have its own folder in their environment."""
        for process in self.running.values():
            end(process.pid)
        for pid in having(f"FLWR_HOME={self.env['FLWR_HOME']}"):
            end(pid)
        for process in self.running.values():
            process.wait(20)

    def updates(self) -> int:
        """How many updates the server has kept."""
        if not (self.folder / "server" / STATE).is_file():
            return 0
        return self.strategy().step

    def strategy(self) -> MacForget:
        found = MacForget(folder=self.folder / "server")
        found.resume(parameters_of(build()))
        return found

    def wait_for(self, count: int, seconds: float = 240) -> None:
        self.until(lambda: self.updates() >= count, f"{count} updates", seconds)

    def until(self, met: Any, what: str, seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while not met():
            if time.monotonic() > end:
                logs = {path.name: path.read_text(errors="replace")[-2500:] for path in self.folder.glob("*.log")}
                pytest.fail(f"no {what} after {seconds} s\n" + "\n".join(f"--- {k}\n{v}" for k, v in logs.items()))
            time.sleep(0.5)

    def told(self, number: int = 0) -> dict[str, Any]:
        command = [BIN / "forsaken", "federated", "status", "--node", self.folder / f"node-{number}", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=self.env)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    found = Deployment(tmp_path)
    try:
        yield found
    finally:
        found.close()


def test_a_request_is_done_once_through_kills_of_a_node_and_of_the_server(deployment: Deployment) -> None:
    folder = deployment.folder
    fit_references(folder / "node-0", 0)
    trained(folder, 12)
    assert measure(deployment.strategy().theta)["strangers-learnt"] > 0.7
    deployment.superlink()
    for number in range(NODES):
        deployment.node(number)
    deployment.run(rounds=20)
    deployment.wait_for(13)

    # an operator files a request
    count = len(rows_of(0))
    rows = f"{count - STRANGERS}-{count - 1}"
    command = [BIN / "forsaken", "federated", "request", "--node", folder / "node-0", "--rows", rows]
    subprocess.run(command, check=True, env=deployment.env)

    # the node dies in mid-round: its upload is stored, and may or may not have left
    deployment.until(lambda: deployment.told()["requests"][0]["state"] != "filed", "upload of the mask")
    deployment.kill("node-0")
    deployment.node(0)

    # the server dies, and is started again with the same run
    deployment.until(lambda: deployment.updates() >= 14, "update after the request")
    deployment.kill("superlink")
    deployment.kill("run")
    at = deployment.updates()
    deployment.superlink()
    deployment.run(rounds=at + 4)
    deployment.wait_for(at + 4)

    request = deployment.told()["requests"][0]
    assert request["state"] == "checked", request
    assert request["attempt"] == 1, request
    counted = [what for what in request["events"] if what.endswith(" counted it")]
    assert len(counted) == 1, request
    found = measure(deployment.strategy().theta)
    assert found["strangers-learnt"] < 0.3
    assert found["test-accuracy"] > 0.9


def commands() -> dict[str, str]:
    """The shell blocks of the example's README, by their first word."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0].strip() for part in text.split("```sh\n")[1:]]
    return {block.split()[0]: block for block in blocks}


def test_the_documented_set_up_with_tls_and_authentication_works(deployment: Deployment) -> None:
    """Every command of the README, but for ports and whole paths."""
    found, folder = commands(), deployment.folder
    assert set(found) == {"mkdir", "flower-superlink", "for", "python", "flwr"}

    def here(text: str) -> str:
        for number, port in enumerate(deployment.node_ports):
            text = text.replace(f"--port {9394 + number}", f"--port {port}")
        return text.replace("9393", str(deployment.port)).replace('folder="', f'folder="{folder}/')

    def shell(name: str) -> None:
        subprocess.run(["bash", "-ec", here(found[name])], cwd=folder, env=deployment.env, check=True)

    shell("mkdir")
    deployment.start("superlink", *shlex.split(here(found["flower-superlink"])))
    deployment.until(deployment.answers, "answer of the SuperLink", 60)
    shell("for")
    _, node_command = found["python"].split("\n")
    for number in range(NODES):
        text = node_command.replace("node-0", f"node-{number}").replace("9394", str(9394 + number))
        text = text.replace("partition-id=0", f"partition-id={number}")
        deployment.start(f"node-{number}", *shlex.split(here(text)))
    words = shlex.split(here(found["flwr"].replace("rounds=20", "rounds=1")).replace("run .", f"run {EXAMPLE}"))
    deployment.start("run", *words)
    deployment.wait_for(1, 120)


def test_the_demonstration_runs_by_simulation(tmp_path: Path) -> None:
    command = [BIN / "forsaken", "federated", "demo", "--out", tmp_path / "demo", "--json"]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, check=True, timeout=400)
    found = json.loads(done.stdout)
    assert found["before"]["strangers-learnt"] > 0.9
    assert found["after"]["strangers-learnt"] < 0.3
    assert found["after"]["test-accuracy"] > 0.9
    assert (found["request"]["state"], found["request"]["attempt"]) == ("checked", 1)
