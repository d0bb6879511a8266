"""Strategy and client on an in-memory grid: the promise of the exact mode, requests through kills, and liars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import LOCAL, ROWS, WIDTH, ScriptedNode, build, claimed, grid_of, nodes_in, rows_of, run
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from torch import nn

from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.federated.app import client_app, run_rounds
from forsaken.federated.client import Node, parameters_of
from forsaken.federated.grid import InMemoryGrid
from forsaken.federated.moments import summed
from forsaken.federated.scaling import Terms, Vector, norm, plus
from forsaken.federated.strategy import MacForget
from forsaken.models.logits import accuracy, predict_logits
from forsaken.references.curvature import Curvature

DIVISORS = {"mean": None, "weighted-mean": 4.0 * ROWS, "sum": 4.0 * ROWS}
WRONG = range(8)


@pytest.fixture(scope="module")
def learnt() -> Vector:
    """Weights of a federation that has learnt the wrong labels by heart."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return run(MacForget(), grid_of(nodes_in(Path(folder))), 25)[-1]


def apart(one: Vector, other: Vector) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def model_of(theta: Vector) -> nn.Module:
    model = build()
    model.load_state_dict(theta)
    return model.eval()


@pytest.mark.parametrize("rule", DIVISORS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_follow_the_recorded_rounds_shifted_by_the_mask(
    tmp_path: Path, learnt: Vector, rule: str, momentum: float
) -> None:
    """Exact mode, five rounds: θ with the request is θ without it, minus μ, to 1e-5."""
    seen: dict[str, list[Vector]] = {}
    for name in ("plain", "asked"):
        nodes = nodes_in(tmp_path / name, kind=ScriptedNode)
        nodes[100].silent_at = 0  # type: ignore[attr-defined]  # the mask goes in place of the ordinary upload
        if name == "asked":
            nodes[100].requests.file(list(WRONG))
        strategy = MacForget(rule=rule, rate=0.5, momentum=momentum, divisor=DIVISORS[rule])
        seen[name] = run(strategy, grid_of(nodes), 5, learnt)
    masks = [plus(plain, asked, -1.0) for plain, asked in zip(seen["plain"], seen["asked"], strict=True)]
    assert norm(masks[0]) == 0
    assert norm(masks[1]) > 0.1, "there is a mask at all"
    for later in masks[2:]:
        assert apart(later, masks[1]) < 1e-5
    request = nodes[100].requests.get(1)
    assert request.state == "checked"
    assert request.attempt == 1


def test_the_mask_is_that_of_the_central_method(tmp_path: Path, learnt: Vector) -> None:
    import forsaken

    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    node = nodes[100]
    node.silent_at = 0  # type: ignore[attr-defined]
    node.requests.file(list(WRONG))
    plain = nodes_in(tmp_path / "plain", kind=ScriptedNode)
    plain[100].silent_at = 0  # type: ignore[attr-defined]
    after = run(MacForget(), grid_of(nodes), 1, learnt)[-1]
    without = run(MacForget(), grid_of(plain), 1, learnt)[-1]
    model, data = model_of(learnt), node.data
    curvature = Curvature.fit(model, data.rows(range(8, ROWS)).inputs)
    done = forsaken.unlearn(model, data.rows(WRONG).inputs, references=node.references, curvature=curvature)
    central = {name: learnt[name] - part.detach() for name, part in done.model.named_parameters()}
    assert apart(plus(without, after, -1.0), central) < 1e-5


def test_drop_outs_leave_the_mask_whole(tmp_path: Path, learnt: Vector) -> None:
    """The divisor stays what was announced: with one node, two or three missing, the mask arrives as it is."""
    shifts = []
    for missing in (0, 1, 3):
        seen = []
        for name in ("plain", "asked"):
            nodes = nodes_in(tmp_path / f"{name}-{missing}", kind=ScriptedNode)
            nodes[100].silent_at = 0  # type: ignore[attr-defined]
            if name == "asked":
                nodes[100].requests.file(list(WRONG))
            gone = {101 + at for at in range(missing)}
            grid = grid_of(nodes, lambda node, reply, gone=gone: None if node in gone else reply)  # type: ignore[misc]
            seen.append(run(MacForget(), grid, 1, learnt)[-1])
        shifts.append(plus(seen[0], seen[1], -1.0))
    assert norm(shifts[0]) > 0.1
    assert apart(shifts[0], shifts[1]) < 1e-5
    assert apart(shifts[0], shifts[2]) < 1e-5


@pytest.mark.parametrize("mode", ["exact", "hidden"])
def test_the_samples_are_forgotten_and_the_others_kept(tmp_path: Path, learnt: Vector, mode: str) -> None:
    nodes = nodes_in(tmp_path, mode=mode, recipe=replace(LOCAL, learning_rate=0.001))
    node, others = nodes[100], rows_of(0).rows(range(8, ROWS))
    wrong = node.data.rows(WRONG)
    assert accuracy(model_of(learnt), (wrong.inputs, wrong.labels)) > 0.8, "the wrong labels were learnt"
    node.requests.file(list(WRONG))
    cover = 0.02 if mode == "hidden" else 0.0
    after = run(MacForget(cover=cover), grid_of(nodes), 3 if mode == "exact" else 13, learnt)[-1]
    assert node.requests.get(1).state == "checked", node.requests.events(1)
    assert accuracy(model_of(after), (wrong.inputs, wrong.labels)) < 0.5
    assert accuracy(model_of(after), (others.inputs, others.labels)) > 0.9
    assert node.requests.mask(1) is None, "a mask can restore the memory"


def test_fedsgd_uploads_one_gradient(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, count=2, recipe=None)
    before, after = run(MacForget(rate=0.1), grid_of(nodes), 1)
    model, total = build(), None
    for node in nodes.values():
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(node.data.inputs), node.data.labels)
        loss.backward()
        own = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
        total = own if total is None else plus(total, own)
    assert total is not None
    assert apart(after, plus(before, total, -0.1 / 2)) < 1e-6


# --- once and only once ----------------------------------------------------------------------------------------------


def times_applied(events: list[tuple[str, str]]) -> int:
    return sum("counted it" in what and "not" not in what for _, what in events)


@pytest.mark.parametrize("killed", ["before", "during", "after"])
def test_a_node_that_is_killed_forgets_once(tmp_path: Path, learnt: Vector, killed: str) -> None:
    """Killed before its round, after it stored its upload but before that left, and after it left."""
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    nodes[100].requests.file(list(WRONG))

    def restarted() -> None:
        nodes[100] = nodes_in(tmp_path, count=1, kind=ScriptedNode)[100]

    def tamper(node: int, reply: Message) -> Message | None:
        if node == 100 and strategy.step == 0:
            restarted()
            return None if killed == "during" else reply
        return reply

    strategy = MacForget()
    if killed == "before":
        restarted()
    grid = grid_of(nodes, tamper if killed != "before" else None)
    seen = run(strategy, grid, 4, learnt)
    assert nodes[100].requests.get(1).state == "checked"
    assert nodes[100].requests.get(1).attempt == 1
    assert times_applied(nodes[100].requests.events(1)) == 1
    wrong = nodes[100].data.rows(WRONG)
    assert accuracy(model_of(seen[-1]), (wrong.inputs, wrong.labels)) < 0.5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("killed_at", [0, 1, 2])
def test_a_server_that_is_killed_goes_on_and_the_mask_is_in_once(
    tmp_path: Path, learnt: Vector, killed_at: int, momentum: float
) -> None:
    """The server dies after it got the uploads of an update and before it kept the new weights."""

    class KilledError(Exception):
        pass

    class Fragile(MacForget):
        def _write(self) -> None:
            if self.step == killed_at + 1 and not dead:
                dead.append(True)
                raise KilledError
            super()._write()

    seen, dead = [], [True]
    for name in ("plain", "asked"):
        nodes = nodes_in(tmp_path / name, kind=ScriptedNode)
        nodes[100].silent_at = 0  # type: ignore[attr-defined]
        settings: dict[str, Any] = {"folder": tmp_path / name / "server", "momentum": momentum}
        strategy = Fragile(**settings)
        if name == "asked":
            dead.clear()
            nodes[100].requests.file(list(WRONG))
        arrays = strategy.resume(learnt)
        try:
            strategy.start(grid_of(nodes), arrays, num_rounds=5)
        except KilledError:
            strategy = Fragile(**settings)
            arrays = strategy.resume(learnt)
            assert strategy.step == killed_at
            strategy.start(grid_of(nodes), arrays, num_rounds=5 - strategy.step)
        assert strategy.step == 5
        seen.append(strategy.theta)
    assert nodes[100].requests.get(1).state == "checked"
    shift = plus(seen[0], seen[1], -1.0)
    found: list[Vector] = []
    for name in ("one", "two"):  # the mask itself, from a single undisturbed round
        again = nodes_in(tmp_path / name, kind=ScriptedNode)
        again[100].silent_at = 0  # type: ignore[attr-defined]
        if name == "two":
            again[100].requests.file(list(WRONG))
        found.append(run(MacForget(), grid_of(again), 1, learnt)[-1])
    assert apart(shift, plus(found[0], found[1], -1.0)) < 1e-5


def test_a_server_that_lost_updates_gets_the_mask_again(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    nodes[100].requests.file(list(WRONG))
    run(MacForget(), grid_of(nodes), 3, learnt)
    assert nodes[100].requests.get(1).state == "checked"
    after = run(MacForget(), grid_of(nodes), 4, learnt)[-1]  # a new server at step 0, with the weights from before
    request = nodes[100].requests.get(1)
    assert (request.state, request.attempt) == ("checked", 2)
    wrong = nodes[100].data.rows(WRONG)
    assert accuracy(model_of(after), (wrong.inputs, wrong.labels)) < 0.5


def test_samples_that_another_node_brings_back_are_filed_again(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    nodes[100].requests.file(list(WRONG))
    strategy = MacForget()

    def tamper(node: int, reply: Message) -> Message:
        """Node 101 takes the mask back in the round in which it is applied."""
        if strategy.step == 0 and node == 100:
            kept["upload"] = reply.content.array_records["arrays"].to_torch_state_dict()
        if strategy.step == 0 and node == 101:
            back = ArrayRecord({name: -part for name, part in kept["upload"].items()})
            return Message(
                RecordDict({"arrays": back, "upload": reply.content.config_records["upload"]}), reply_to=asked[node]
            )
        return reply

    kept: dict[str, Any] = {}
    asked: dict[int, Message] = {}
    grid = grid_of(nodes, tamper)
    send = grid.send_and_receive

    def remembered(messages: Any, *, timeout: float | None = None) -> Any:
        found = list(messages)
        asked.update({message.metadata.dst_node_id: message for message in found})
        return send(found, timeout=timeout)

    grid.send_and_receive = remembered  # type: ignore[method-assign]
    run(strategy, grid, 5, learnt)
    request = nodes[100].requests.get(1)
    assert (request.state, request.attempt) == ("checked", 2)
    assert any("filed again" in what for _, what in nodes[100].requests.events(1))


# --- liars, and those who leave ---------------------------------------------------------------------------------------


def lied(message: Message, lie: str) -> Message:
    record = message.content.array_records["arrays"].to_torch_state_dict()
    first = next(iter(record))
    if lie == "huge":
        record = {name: torch.full_like(part, 1e30) for name, part in record.items()}
    if lie == "infinite":
        record[first][0] = float("inf")
    if lie == "nan":
        record[first][0] = float("nan")
    if lie == "another shape":
        record[first] = record[first].reshape(-1)
    if lie == "no weights":
        record = {}
    message.content["arrays"] = ArrayRecord(record)
    if lie == "no token":
        del message.content["upload"]
    if lie == "old step":
        message.content.config_records["upload"]["step"] = 77
    return message


@pytest.mark.parametrize(
    "lie", ["huge", "infinite", "nan", "another shape", "no weights", "no token", "old step", "error", "leaves"]
)
def test_a_client_that_lies_or_leaves_does_not_break_the_round(tmp_path: Path, learnt: Vector, lie: str) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)

    def tamper(node: int, reply: Message) -> Message | None:
        if node != 102:
            return reply
        if lie == "leaves":
            return None
        if lie == "error":
            return Message(
                Error(code=2, reason="broken"), reply_to=Message(RecordDict(), dst_node_id=1, message_type="train")
            )
        return lied(reply, lie)

    strategy = MacForget()
    run(strategy, grid_of(nodes), 1, learnt)
    assert strategy.step == 1
    honest = nodes_in(tmp_path / "honest", kind=ScriptedNode)
    without = run(MacForget(), grid_of(honest, lambda node, reply: None if node == 102 else reply), 2, learnt)
    strategy.start(grid_of(nodes, tamper), ArrayRecord(dict(strategy.theta)), num_rounds=1)
    assert strategy.step == 2
    assert all(bool(torch.isfinite(part).all()) for part in strategy.theta.values())
    if lie == "huge":
        assert norm(plus(strategy.theta, without[-1], -1.0)) < 2.1 * norm(without[-1]), "shortened to the bound"
    else:
        honest_first = run(MacForget(), grid_of(nodes_in(tmp_path / "all", kind=ScriptedNode)), 1, learnt)[-1]
        step = plus(without[-1], without[-2], -1.0)
        assert apart(strategy.theta, plus(honest_first, step)) < 1e-5


def test_an_upload_is_counted_once_even_if_it_is_sent_twice(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    grid = grid_of(nodes)
    strategy = MacForget()
    arrays = strategy.resume(learnt)
    replies = list(grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid)))
    _, metrics = strategy.aggregate_train(1, [*replies, replies[0]])
    assert metrics is not None
    assert (metrics["counted"], metrics["refused"]) == (4, 1)


def test_a_round_without_any_upload_leaves_the_weights(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    strategy = MacForget()
    after = run(strategy, grid_of(nodes, lambda node, reply: None), 1, learnt)[-1]
    assert strategy.step == 0
    assert apart(after, learnt) == 0


def test_a_bound_spreads_the_mask_over_rounds(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    nodes[100].requests.file(list(WRONG))
    sizes = []

    def tamper(node: int, reply: Message) -> Message:
        sizes.append(norm(reply.content.array_records["arrays"].to_torch_state_dict()))
        return reply

    run(MacForget(bound=1.0), grid_of(nodes, tamper), 16, learnt)
    assert 0.25 * max(sizes) <= 1.0001
    assert times_applied(nodes[100].requests.events(1)) > 1
    assert nodes[100].requests.get(1).state == "checked"


def test_a_bound_below_the_ordinary_uploads_lets_a_mask_through(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode, mode="hidden")
    nodes[100].requests.file(list(WRONG))
    run(MacForget(bound=0.4), grid_of(nodes), 6, learnt)  # ordinary uploads would move the weights by 0.5
    assert nodes[100].requests.get(1).ledger.applied > 0.1


# --- what the server sees ---------------------------------------------------------------------------------------------


def test_messages_do_not_tell_who_forgets(tmp_path: Path, learnt: Vector) -> None:
    """Type, records, keys and numbers of samples are the same; the token is random and the arrays are numbers."""
    nodes = nodes_in(tmp_path)
    nodes[100].requests.file(list(WRONG))
    seen = {}

    def tamper(node: int, reply: Message) -> Message:
        about = dict(reply.content.config_records["upload"])
        token = about.pop("token")
        arrays = reply.content.array_records["arrays"].to_torch_state_dict()
        shapes = {name: (part.dtype, tuple(part.shape)) for name, part in arrays.items()}
        seen[node] = (sorted(reply.content), reply.metadata.message_type, about, len(str(token)), shapes)
        return reply

    run(MacForget(), grid_of(nodes, tamper), 1, learnt)
    assert seen[100] == seen[101]


def test_cover_is_taken_back(tmp_path: Path, learnt: Vector) -> None:
    """Noise of one round stays in the weights; the last round, without cover, takes all of it out."""
    plain = run(MacForget(), grid_of(nodes_in(tmp_path / "plain", kind=ScriptedNode)), 4, learnt)
    nodes = nodes_in(tmp_path / "covered", kind=ScriptedNode)
    strategy = MacForget(cover=0.1)
    covered = run(strategy, grid_of(nodes), 3, learnt)
    count = sum(part.numel() for part in learnt.values())
    for at in (1, 2, 3):
        left = norm(plus(covered[at], plain[at], -1.0))
        assert 0.5 < left / (0.1 * (count / 4) ** 0.5) < 2.0, "the noise of four nodes, of one round"
    strategy.last = 4
    assert apart(run(strategy, grid_of(nodes), 1)[-1], plain[-1]) < 1e-5


def test_cover_of_a_lost_upload_is_not_taken_back(tmp_path: Path, learnt: Vector) -> None:
    plain = run(MacForget(), grid_of(nodes_in(tmp_path / "plain", kind=ScriptedNode)), 4, learnt)
    nodes = nodes_in(tmp_path / "covered", kind=ScriptedNode)
    strategy = MacForget(cover=0.1)
    lost = grid_of(nodes, lambda node, reply: None if node == 101 and strategy.step == 1 else reply)
    run(strategy, lost, 3, learnt)
    strategy.last = 4
    end = run(strategy, lost, 1)[-1]
    missing = plus(end, plain[-1], -1.0)  # the ordinary upload of node 101 in the round that lost it
    expected = nodes[101]._ordinary(nodes[101].data, Terms(1, "mean", divisor=4, rate=1.0))
    assert apart(missing, {name: part / 4 for name, part in expected.items()}) < 1e-5


class QuietNode(ScriptedNode):
    """A node that learns nothing: all that it uploads is a mask and noise."""

    def _ordinary(self, kept: Samples, terms: Terms) -> Vector:
        return {name: torch.zeros_like(part) for name, part in super()._ordinary(kept, terms).items()}


def test_a_mask_beside_cover_arrives_whole_within_the_bound(tmp_path: Path, learnt: Vector) -> None:
    """The server shortens no upload, so that the whole mask arrives and all of the noise is taken back."""
    nodes = nodes_in(tmp_path, kind=QuietNode)
    nodes[100].requests.file(list(WRONG))
    strategy = MacForget(cover=0.25, bound=10.6)
    strategy.last = 2
    run(strategy, grid_of(nodes), 1, learnt)
    mask = nodes[100].requests.mask(1)
    assert mask is not None
    assert 10.4 < norm(mask) < 10.6, "it would fit, but for the noise"
    end = run(strategy, grid_of(nodes), 1)[-1]
    assert apart(plus(learnt, end, -1.0), mask) < 1e-5


def test_an_ordinary_upload_leaves_room_for_the_cover(tmp_path: Path, learnt: Vector) -> None:
    (node,) = nodes_in(tmp_path, count=1, kind=ScriptedNode).values()
    terms = Terms(0, "mean", divisor=1.0, rate=1.0, bound=2.1, cover=0.02)
    assert norm(node.round(learnt, terms)[0]) <= terms.bound * 1.0001


def test_a_cover_that_is_longer_than_the_bound_is_refused(tmp_path: Path, learnt: Vector) -> None:
    (node,) = nodes_in(tmp_path, count=1, kind=ScriptedNode).values()
    with pytest.raises(SettingsError, match=r"smaller cover or a larger bound"):
        node.round(learnt, Terms(0, "mean", divisor=4.0, rate=1.0, bound=0.5, cover=0.1))


@pytest.mark.parametrize("later", [30, 0])
def test_cover_is_left_where_the_server_cannot_say_what_its_weights_hold(
    tmp_path: Path, learnt: Vector, later: int
) -> None:
    """After more updates than the server has tokens of, and after it went back to an earlier model."""
    (node,) = nodes_in(tmp_path, count=1, kind=ScriptedNode).values()
    about: dict[str, Any] = {"rule": "mean", "divisor": 1.0, "rate": 1.0, "horizon": 20}
    _, first = node.round(learnt, Terms(0, cover=0.1, **about))
    node.round(learnt, Terms(1, cover=0.1, counted=(first,), **about))
    terms = Terms(later, **about)
    upload, _ = node.round(learnt, terms)
    assert apart(upload, node._ordinary(node.data, terms)) == 0


def test_cover_needs_every_node_in_every_round() -> None:
    with pytest.raises(SettingsError, match="cannot take its noise back"):
        MacForget(cover=0.1, fraction=0.5)


# --- moments, robust rules, settings ----------------------------------------------------------------------------------


def test_moments_of_all_nodes_are_those_of_all_rows(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path)
    strategy = MacForget(moments=1)
    nodes[100].requests.file(list(WRONG))
    run(strategy, grid_of(nodes), 1, learnt)
    rows = torch.cat([nodes[100].data.inputs[8:], *(nodes[at].data.inputs for at in (101, 102, 103))])  # type: ignore[list-item, index]
    whole = Curvature.fit(model_of(learnt), rows, rows=len(rows))
    found = strategy._moments
    assert found is not None
    assert found.rows == whole.rows == 4 * ROWS - 8
    ours, theirs = found.to_tensors()[0], whole.to_tensors()[0]
    for name in ours:
        assert torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5), name


def test_moments_of_another_network_are_left_out() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(4, 2)
    parts = [Curvature.fit(one, torch.eye(3)), Curvature.fit(other, torch.eye(4))]
    found = summed(parts, parameters_of(one))
    assert found is not None
    assert found.rows == 3
    assert summed([], parameters_of(one)) is None


@pytest.mark.parametrize("aggregation", ["trimmed-mean", "krum"])
def test_robust_rules_keep_a_liar_out_and_deform_a_mask(tmp_path: Path, learnt: Vector, aggregation: str) -> None:
    nodes = nodes_in(tmp_path, count=5, kind=ScriptedNode)
    nodes[100].requests.file(list(WRONG))
    honest = {}

    def tamper(node: int, reply: Message) -> Message:
        if node == 102:
            return lied(reply, "huge")
        honest[node] = reply.content.array_records["arrays"].to_torch_state_dict()
        return reply

    after = run(MacForget(aggregation=aggregation), grid_of(nodes, tamper), 1, learnt)[-1]
    moved = plus(learnt, after, -1.0)
    if aggregation == "krum":
        others = [honest[node] for node in (101, 103, 104)]
        assert min(apart(moved, upload) for upload in others) < 1e-6, "Krum takes one of the ordinary uploads"
    else:
        count = sum(part.numel() for part in learnt.values())
        shortened = 2 * norm(learnt) * 5 / count**0.5  # every number of the liar's upload, after the bound
        for name, part in moved.items():
            uploads = [upload[name].numpy() for upload in honest.values()]
            stack = np.sort(np.stack([*uploads, np.full(part.shape, shortened)]), 0)
            assert np.allclose(part.numpy(), stack[1:4].mean(0), atol=1e-4)


@pytest.mark.parametrize("optimiser", ["adam", "yogi", "adagrad"])
def test_adaptive_optimisers_are_refused_with_a_reason(optimiser: str) -> None:
    with pytest.raises(SettingsError, match="divides every coordinate"):
        MacForget(optimiser=optimiser)


def test_wrong_settings_are_told_together() -> None:
    with pytest.raises(SettingsError, match="3 problems"):
        MacForget(aggregation="median", fraction=2.0, nodes=0)
    with pytest.raises(SettingsError, match="number of samples of all nodes"):
        MacForget(rule="sum")


def test_batch_norm_is_refused(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ModelError, match="group or layer norm"):
        Node(network, rows_of(0), tmp_path)


def test_a_fraction_of_the_nodes_is_asked_and_divides(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    strategy = MacForget(fraction=0.5)
    run(strategy, grid_of(nodes), 1, learnt)
    assert strategy.terms.divisor == 2


# --- bad input on a node ----------------------------------------------------------------------------------------------


def test_a_node_with_another_network_is_told_so_and_the_round_goes_on(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    nodes[103] = Node(nn.Linear(WIDTH, 3), rows_of(3), tmp_path / "node-3", LOCAL)
    strategy = MacForget()
    run(strategy, grid_of(nodes), 1, learnt)
    assert strategy.step == 1
    assert "the server's model has other parameters" in nodes[103].requests.fact("problem")


def test_a_node_that_lost_its_references_says_so_and_trains_on(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    nodes[100].requests.file(list(WRONG))
    nodes[100] = ScriptedNode(build(), rows_of(0), tmp_path / "node-0", LOCAL)
    strategy = MacForget()
    run(strategy, grid_of(nodes), 1, learnt)
    assert len(strategy._tokens[0]) == 4, "it trained"
    request = nodes[100].requests.get(1)
    assert request.state == "filed"
    assert "no references" in request.problem
    nodes[100] = ScriptedNode(build(), rows_of(0), tmp_path / "node-0", LOCAL, claimed(0))
    run(strategy, grid_of(nodes), 3)
    assert nodes[100].requests.get(1).state == "checked"
    assert nodes[100].requests.get(1).problem == ""


def test_rows_that_are_not_memorised_are_done_at_once(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    reference = nodes[100].references
    assert reference is not None
    model = build()
    said = predict_logits(model, nodes[100].data)
    from forsaken import References

    nodes[100].references = References.claimed(nodes[100].data.inputs, said)
    nodes[100].requests.file([0, 1])
    run(MacForget(), grid_of(nodes), 1, parameters_of(model))
    assert nodes[100].requests.get(1).state == "checked"


def test_rounds_run_by_configuration_and_go_on(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, kind=ScriptedNode)
    config = {"rounds": 2, "folder": str(tmp_path / "server"), "rate": 0.5, "nodes": 3}
    measured: list[Vector] = []
    grid = InMemoryGrid(client_app(lambda context: nodes[context.node_id]), nodes)
    first = run_rounds(grid, build, config, lambda theta: measured.append(theta) or {"size": norm(theta)})  # type: ignore[func-returns-value]
    assert first.step == 2
    assert len(measured) == 3
    again = run_rounds(grid, build, config | {"rounds": 5})
    assert again.step == 5
    with pytest.raises(SettingsError, match="rounds is 0"):
        run_rounds(grid, build, {"rounds": 0})


def test_a_query_tells_the_operator_of_rows_and_not_of_requests(tmp_path: Path) -> None:
    nodes = nodes_in(tmp_path, count=1)
    nodes[100].requests.file([1])
    grid = grid_of(nodes)
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=100, message_type="query.status")])
    assert dict(reply.content.metric_records["status"]) == {"samples": ROWS, "with-references": ROWS}
    assert list(reply.content) == ["status"]


def test_a_node_can_forget_all_of_its_rows_by_the_moments_of_the_others(tmp_path: Path, learnt: Vector) -> None:
    nodes = nodes_in(tmp_path)
    nodes[100].requests.file(range(ROWS))
    strategy = MacForget()
    run(strategy, grid_of(nodes), 1, learnt)
    request = nodes[100].requests.get(1)
    assert request.state == "filed"
    assert "let the server share the moments" in request.problem
    assert len(strategy._tokens[0]) == 4, "it stays in the round"
    run(MacForget(moments=1), grid_of(nodes), 3, learnt)
    assert nodes[100].requests.get(1).state == "checked", nodes[100].requests.events(1)


def test_a_node_whose_rows_are_gone_is_told_so(tmp_path: Path) -> None:
    nodes_in(tmp_path, count=1)[100].requests.file([ROWS - 1])
    with pytest.raises(InputError, match="a request names row 39, but the node has 30 rows"):
        Node(build(), rows_of(0, 30), tmp_path / "node-0", LOCAL)
