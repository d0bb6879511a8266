"""SecAgg+ on an in-memory grid: the sum is right within its quantisation, and a mask is not cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import ScriptedNode, build, grid_of, nodes_in, run
from flwr.app import Message

from forsaken.errors import SettingsError
from forsaken.federated.client import Node
from forsaken.federated.grid import InMemoryGrid, Tamper
from forsaken.federated.scaling import Vector, norm, plus
from forsaken.federated.secure import QUANTA, run_secure, secure_client_app
from forsaken.federated.strategy import MacForget

COUNT, BOUND = 4, 20.0


def secure_grid(nodes: dict[int, Node], tamper: Tamper | None = None) -> InMemoryGrid:
    return InMemoryGrid(secure_client_app(lambda context: nodes[context.node_id]), nodes, tamper)


def apart(one: Vector, other: Vector) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def learnt() -> Vector:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return run(MacForget(), grid_of(nodes_in(Path(folder))), 15)[-1]


def start_at(theta: Vector) -> object:
    def built() -> object:
        model = build()
        model.load_state_dict(theta)
        return model

    return built


def quantum(rule: str, rounds: int) -> float:
    """The largest error of a weight: one step of the quantisation for every client and round."""
    divisor = COUNT if rule == "mean" else COUNT * 40
    return rounds * COUNT * (2 * BOUND * divisor / QUANTA) / divisor


@pytest.mark.parametrize("rule", ["mean", "weighted-mean"])
def test_the_sum_is_right_within_the_quantisation(tmp_path: Path, learnt: Vector, rule: str) -> None:
    settings = {"rule": rule, "divisor": 160.0 if rule == "weighted-mean" else None, "bound": BOUND, "nodes": COUNT}
    plain_nodes, nodes = (nodes_in(tmp_path / name, kind=ScriptedNode) for name in ("plain", "secure"))
    for each in (plain_nodes, nodes):
        each[100].requests.file(list(range(8)))
    plain = run(MacForget(**settings), grid_of(plain_nodes), 3, learnt)[-1]  # type: ignore[arg-type]
    config = {name: value for name, value in settings.items() if value is not None} | {"rounds": 3}
    secure = run_secure(secure_grid(nodes), start_at(learnt), config)  # type: ignore[arg-type]
    assert secure.step == 3
    assert nodes[100].requests.get(1).state == "checked"
    assert norm(plus(plain, learnt, -1.0)) > 0.5, "the mask moved the weights"
    # what is checked against follows from the masks of two runs, which differ by what the first round rounded
    assert apart(secure.theta, plain) < 5 * quantum(rule, 3)


def test_a_node_that_leaves_after_the_keys_were_shared_is_left_out_of_the_sum(tmp_path: Path, learnt: Vector) -> None:
    calls = {"103": 0}

    def tamper(node: int, reply: Message) -> Message | None:
        calls["103"] += node == 103
        return None if node == 103 and calls["103"] > 2 else reply

    nodes = nodes_in(tmp_path / "secure", kind=ScriptedNode)
    config = {"rounds": 1, "bound": BOUND, "nodes": COUNT}
    secure = run_secure(secure_grid(nodes, tamper), start_at(learnt), config)  # type: ignore[arg-type]
    assert secure.step == 1
    plain = run(
        MacForget(),
        grid_of(nodes_in(tmp_path / "plain", kind=ScriptedNode), lambda node, reply: None if node == 103 else reply),
        1,
        learnt,
    )[-1]
    assert apart(secure.theta, plain) < quantum("mean", 1)


def test_the_last_round_takes_the_cover_back(tmp_path: Path, learnt: Vector) -> None:
    config = {"rounds": 3, "bound": BOUND, "nodes": COUNT}
    plain, covered = (
        run_secure(secure_grid(nodes_in(tmp_path / name, kind=ScriptedNode)), start_at(learnt), config | more)  # type: ignore[arg-type]
        for name, more in (("plain", {}), ("covered", {"cover": 0.1}))
    )
    assert apart(covered.theta, plain.theta) < 2 * quantum("mean", 3)


def test_a_bound_is_needed_and_robust_rules_are_refused(tmp_path: Path) -> None:
    grid = secure_grid(nodes_in(tmp_path, count=3))
    with pytest.raises(SettingsError, match="clipping range"):
        run_secure(grid, build, {"rounds": 1})
    with pytest.raises(SettingsError, match="secure aggregation"):
        run_secure(grid, build, {"rounds": 1, "bound": 1.0, "aggregation": "krum"})
