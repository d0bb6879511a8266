"""The job file: what is accepted, and that every problem is told at once, in words, with its line."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from forsaken.errors import DataNotFoundError, SettingsError
from forsaken.jobs.configuration import TABLES, Job, Source, read_job

VALID = """\
[model]
factory = "my.nets:build"
weights = "model.safetensors"
[data]
forget = "forget.parquet"
train = "train.parquet"
[method]
[output]
folder = "out"
"""
TEMPLATE = files("forsaken.jobs").joinpath("template.toml").read_text(encoding="utf-8")


def job_of(text: str, folder: Path) -> Job:
    path = folder / "forsaken.toml"
    path.write_text(text, encoding="utf-8")
    return read_job(path)


def problems_of(text: str, folder: Path) -> list[str]:
    """Return the problems without the dash, after checking the head line and that nothing leaks."""
    with pytest.raises(SettingsError) as caught:
        job_of(text, folder)
    head, *found = str(caught.value).split("\n")
    assert all(line.startswith("  - ") for line in found)
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    assert head == f"{folder / 'forsaken.toml'}: {count}"
    assert "pydantic" not in str(caught.value)
    return [line.removeprefix("  - ") for line in found]


def changed(*changes: tuple[str, str]) -> str:
    text = VALID
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


FORGET, WEIGHTS, FACTORY, FOLDER = '"forget.parquet"', "model.safetensors", "my.nets:build", 'folder = "out"'
MODEL, DATA, METHOD = "[model]", "[data]", "[method]"
# What replaces a line of VALID, and the one problem that follows.
WRONG: list[tuple[str, str, str]] = [
    # keys and tables
    ('weights = "model', 'wieghts = 1\nweights = "model',
     "line 3: [model] wieghts is unknown, expected one of arguments, base, device, factory, forward, trusted, weights; "
     "did you mean 'weights'?"),
    (METHOD, "[method]\n[orcale]", "line 8: [orcale] is unknown, expected one of audit, chain, data, method, "
     "model, oracle, output, references, request; did you mean 'oracle'?"),
    (MODEL, "weights = 1\n[model]", "line 1: [weights] is unknown, expected one of audit, chain, data, method, model, "
     "oracle, output, references, request; the key belongs to [model] or [method] or [oracle]"),
    (MODEL, "path = 1\n[model]", "line 1: [path] is unknown, expected one of audit, chain, data, method, "),
    (MODEL, "chain = 1\n[model]", "line 1: [chain] is 1, expected a table with limits such as max_drift = 2.0"),
    (MODEL, "[[chain]]\n[model]", "line 1: [chain] is a list, expected a table with limits such as max_drift = 2.0"),
    (FOLDER, 'folder = "out"\nseed = 1', "line 10: [output] seed is unknown, expected one of allow, batch_norm, "
     "cleaned, folder, mask, per_record, record_key, signing_key; the key belongs to [method] or [references]"),
    ('[output]\nfolder = "out"\n', "", "[output] is missing, expected a table with the folder of the results"),
    (FOLDER, "", 'line 8: [output] folder is missing, expected a folder such as "forgotten"'),
    ('forget = "forget.parquet"\n', "",
     'line 4: [data] forget is missing, expected a path such as "samples.parquet" or a '
     'table such as { of = "train", ids = [1, 2] }'),
    # [model]
    ('factory = "my.nets:build"\n', "",
     'line 1: [model] factory is missing, expected a function as "package.module:function" that builds the network, '
     "since .safetensors files hold weights only"),
    (FACTORY, "my.nets.build", "line 2: [model] factory is 'my.nets.build', expected a function as "
     '"package.module:function"'),
    (FACTORY, "my nets:build", "line 2: [model] factory is 'my nets:build', expected a function"),
    (FACTORY, "my.class:build", "line 2: [model] factory is 'my.class:build', expected a function"),
    (FACTORY, "my.nets:lambda", "line 2: [model] factory is 'my.nets:lambda', expected a function"),
    (WEIGHTS, "model.pt2", "line 2: [model] factory means nothing for a .pt2 file, which holds the whole model; "
     "leave it out"),
    (WEIGHTS, "model.skops", "line 2: [model] factory means nothing for a .skops file"),
    (WEIGHTS, "bert-base", "line 2: [model] factory means nothing for a Hugging Face folder"),
    (WEIGHTS, "bert-1.5/", "line 2: [model] factory means nothing for a Hugging Face folder"),
    (WEIGHTS, "model.h5", "line 3: [model] weights is 'model.h5', expected .safetensors, .pt, .pth, .pt2, .skops "
     "or the folder of a Hugging Face model (end the name of a folder with / if it has a dot)"),
    *((WEIGHTS, f"model{suffix}", f"line 3: [model] weights is 'model{suffix}', a pickle, which may carry code "
       "and is never opened; convert it once, where you trust it: safetensors.torch.save_file(model.state_dict(), "
       '"model.safetensors"), or for scikit-learn skops.io.dump(model, "model.skops")')
      for suffix in (".pkl", ".pickle", ".joblib", ".bin", ".ckpt", ".PKL")),
    (WEIGHTS, "", "line 3: [model] weights is '', expected a path such as \"model.safetensors\""),
    (WEIGHTS, "a\\u0000.pt", "line 3: [model] weights holds a NUL character, which no path can; remove it"),
    (WEIGHTS, "~nobody-at-all/a.pt", "line 3: [model] weights names the home folder of a user that is not known"),
    (DATA, 'device = "gpu"\n[data]', 'line 4: [model] device is \'gpu\', expected "cpu", "cuda", "cuda:1" or "mps"'),
    (DATA, 'device = "cuda:x"\n[data]', "line 4: [model] device is 'cuda:x'"),
    (DATA, "device = true\n[data]", "line 4: [model] device is true"),
    (DATA, "arguments = 2024-01-02\n[data]",
     "line 4: [model] arguments is a value of type date, expected a table such as { classes "
     "= 10 }"),
    (DATA, 'trusted = ["a.B"]\n[data]', "line 4: [model] trusted means nothing for weights that do not end in .skops"),
    (DATA, 'trusted = ["B", 3]\n[data]', "line 4: [model] trusted is ['B', 3], expected a list of types such as "
     '["package.Type"]'),
    (DATA, f'device = "{"x" * 99}"\n[data]', f"line 4: [model] device is '{'x' * 56}..., expected"),
    # [data]
    (FORGET, "12", 'line 5: [data] forget is 12, expected a path such as "samples.parquet" or a table such as '
     '{ of = "train", ids = [1, 2] }'),
    (FORGET, "[901, 902]", "line 5: [data] forget is a list, expected a path"),
    (FORGET, "{}", "line 5: [data] forget does not say where its data come from, expected exactly one of path, "
     "python, of"),
    (FORGET, '{ path = "a", of = "train" }', "line 5: [data] forget has path and of, expected exactly one of path, "
     "python, of"),
    (FORGET, '{ of = "train", cuont = 3 }', "line 5: [data] forget.cuont is unknown, expected one of arguments, "
     "count, ids, of, path, python; did you mean 'count'?"),
    (FORGET, '{ path = "a", label = "y" }', "line 5: [data] forget.label is unknown, expected one of arguments, "
     "count, ids, of, path, python; the key belongs to [data]"),
    (FORGET, '{ of = "train", count = 0 }', "line 5: [data] forget.count is 0, expected a whole number >= 1"),
    (FORGET, '{ of = "train", count = true }', "line 5: [data] forget.count is true, expected a whole number"),
    (FORGET, '{ of = "train", ids = [] }', "line 5: [data] forget.ids is empty, expected at least one id"),
    (FORGET, '{ of = "train", ids = "" }', "line 5: [data] forget.ids is a value of type str, expected a list"),
    (FORGET, '{ of = "train", ids = 901 }', "line 5: [data] forget.ids is a value of type int, expected a list"),
    (FORGET, '{ of = "train", ids = ["901", 9.5] }', "line 5: [data] forget.ids has a value of type float at "
     "position 1, expected whole numbers or strings"),
    (FORGET, '{ of = "train", ids = [901, true] }', "line 5: [data] forget.ids has a value of type bool at "),
    (FORGET, '{ of = "train", ids = [901, ""] }', "line 5: [data] forget.ids has an empty string at position 1"),
    (FORGET, '{ of = "train", ids = [901], count = 1 }', "line 5: [data] forget has ids and count, expected one of "
     "them"),
    (FORGET, '{ path = "a", arguments = {} }', "line 5: [data] forget.arguments belongs to python, which is not "
     "given; leave it out"),
    (FORGET, '{ python = "load" }', "line 5: [data] forget.python is 'load', expected a function as "),
    (FORGET, '{ of = "forget" }', "line 5: [data] forget.of is 'forget', expected another set that [data] gives: tr"),
    (FORGET, '{ of = "test" }', "line 5: [data] forget.of is 'test', expected another set that [data] gives: train; "
     "add test to [data]"),
    (FORGET, '{ of = "trian" }', "line 5: [data] forget.of is 'trian', expected another set that [data] gives: train; "
     "did you mean 'train'?"),
    (METHOD, 'size = [32]\n[method]',
     "line 7: [data] size is [32], expected height and width from 1 to 10000, such as "),
    (METHOD, "size = [32, 0]\n[method]", "line 7: [data] size is [32, 0], expected height"),
    (METHOD, "size = [32, 10001]\n[method]", "line 7: [data] size is [32, 10001], expected height"),
    (METHOD, "size = [32, 32.0]\n[method]", "line 7: [data] size is [32, 32.0], expected height"),
    (METHOD, 'label = ""\n[method]', "line 7: [data] label is '', expected the name of a column, such as \"label\""),
    (METHOD, 'prepare = "p:1"\n[method]', "line 7: [data] prepare is 'p:1', expected a function"),
    # [method]
    (METHOD, '[method]\nname = "forsakn"',
     "line 8: [method] name is 'forsakn', expected one of bad-teacher, "),
    (METHOD, f'[method]\nname = "{"x" * 99}"', f"line 8: [method] name is '{'x' * 56}..., expected one of bad-t"),
    (METHOD, "[method]\nname = 1", 'line 8: [method] name is 1, expected the name of a method, such as "forsaken"'),
    (METHOD, "[method]\nseed = -1", "line 8: [method] seed is -1, expected a whole number from 0 to 4294967295"),
    (METHOD, "[method]\nseed = 4294967296", "line 8: [method] seed is 4294967296, expected"),
    (METHOD, "[method]\nseed = 1.0", "line 8: [method] seed is 1.0, expected"),
    (METHOD, "[method]\niteratons = 1",
     "line 8: [method] iteratons is unknown, expected one of "),
    (METHOD, '[method]\nretain = "x"', "line 8: [method] retain is unknown, expected one of "),
    (METHOD, "[method.settings]\npenalty = 1", "line 7: [method] settings is unknown"),
    (METHOD, "[method]\n\npenalty = -1", "line 9: [method] penalty is -1, expected a number >= 0"),
    (METHOD, "[method]\npenalty = nan", "line 8: [method] penalty is nan, expected a number >= 0"),
    (METHOD, f'[method]\ntarget = "{"x" * 99}"',
     f"line 8: [method] unknown target '{'x' * 56}... (known: class-mean, "),
    (METHOD, '[method]\ntarget = "uniform"\nstop = "calibrated"',
     'line 7: [method] stop="calibrated" needs reference samples'),
    (METHOD, "[method]\nparameters = 1", 'line 8: [method] parameters is 1, expected a pattern such as "layer4.*", or'),
    (METHOD, '[method]\nparameters = ["a", 1]', "line 8: [method] parameters is ['a', 1], expected"),
    (METHOD, "[method]\nparameters = []", "line 8: [method] parameters is [], expected"),
    # [oracle]
    (METHOD, "[oracle]\n[method]", "line 7: [oracle] has neither file nor weights nor retrained, expected one of them"),
    (METHOD, '[oracle]\nmembers = "m"\nnonmembers = "n"\n[method]',
     "line 7: [oracle] weights is missing, expected weights, "
     "members and nonmembers of a shadow model together"),
    (METHOD, '[oracle]\nfile = "o.json"\nmembers = "m"\n[method]',
     "line 8: [oracle] file stands beside members, expected either the file of an oracle or a shadow model"),
    (METHOD, '[oracle]\nretrained = "r.pkl"\n[method]', "line 8: [oracle] retrained is 'r.pkl', a pickle"),
    (METHOD, '[oracle]\nweights = "s.pt"\nmembers = { of = "test" }\nnonmembers = "n"\n[method]', "line 9: [oracle] "
     "members.of is 'test', expected another set that [data] gives: forget, train; add test to [data]"),
    # [chain] and [output]
    (METHOD, "[chain]\nmax_drift = -0.1\n[method]",
     "line 8: [chain] max_drift is -0.1, expected a number >= 0, such as 2.0"),
    (METHOD, "[chain]\nmax_accuracy_loss = inf\n[method]",
     "line 8: [chain] max_accuracy_loss is inf, expected a number"),
    (FOLDER, 'folder = " "', "line 9: [output] folder is ' ', expected a folder such as \"forgotten\""),
    (FOLDER, 'folder = "out"\nmask = 1', "line 10: [output] mask is 1, expected true or false"),
    (FOLDER, 'folder = "out"\ncleaned = "all"', 'line 10: [output] cleaned is \'all\', expected "dataset", "rows" or '
     '"none"'),
    ('train = "train.parquet"\n[method]\n[output]', '[output]\ncleaned = "rows"',
     "line 7: [output] cleaned is 'rows', but "
     "[data] has no train to clean; add train, or leave cleaned out"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"), WRONG, ids=[f"{at}-{row[1][:30]!r}" for at, row in enumerate(WRONG)]
)
def test_a_wrong_line_gives_one_problem_in_words(old: str, new: str, expected: str, tmp_path: Path) -> None:
    found = problems_of(changed((old, new)), tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith(expected)
    assert "901" not in found[0], "an id is quoted"


def test_every_problem_is_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = """\
# a comment

[model]
wieghts = "model.pt"
device = "gpu"
[data]
forget = { path = "a", of = "b", ids = [true], count = 0, x = 1 }
[method]
penalty = -1
iterations = 0
distance = "cosine"
itterations = 1
[chains]
"""
    found = problems_of(text, tmp_path)
    lines = [int(match[1]) if (match := re.match(r"line (\d+): ", problem)) else None for problem in found]
    assert lines == [3, 4, 5, 7, 7, 7, 9, 10, 11, 12, 13, None]
    assert found[0].endswith('[model] weights is missing, expected a path such as "model.safetensors"')
    assert found[-1] == "[output] is missing, expected a table with the folder of the results"
    for word in ("ids has a value of type bool", "count is 0", "x is unknown"):
        assert sum(word in problem for problem in found[3:6]) == 1, word


def test_problems_carry_what_they_are_about(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        job_of(changed((FORGET, '{ of = "train", ids = [901], count = 0 }'), (FOLDER, "folder = 1")), tmp_path)
    found = [(each.field, each.value, each.expected) for each in caught.value.problems]
    assert found == [
        ("[data] forget.count", 0, "a whole number >= 1"),
        ("[output] folder", 1, 'a folder such as "forgotten"'),
    ]


@pytest.mark.parametrize("before", [
    pytest.param('a = """\n[output]\nfolder = 1\n"""', id="key in a long string"),
    pytest.param("a = '''\n[output]\n'''", id="table in a long literal"),
    pytest.param('a = [\n 1, # folder = 3\n "]",\n]', id="array over lines"),
    pytest.param('# folder = 1\n\n\na = "x # y"', id="comments"),
    pytest.param("a = [" + "1, " * 300_000 + "]", id="a megabyte"),
])  # fmt: skip
@pytest.mark.parametrize("key", ["folder", "'folder'", '  "folder" '])
def test_the_line_is_that_of_the_key(before: str, key: str, tmp_path: Path) -> None:
    text = VALID.replace("[data]", f"[model.arguments]\n{before}\n[data]").replace("folder =", f"{key} =")
    found = problems_of(text.replace('"out"', "12"), tmp_path)
    assert found == [f'line {text.count(chr(10))}: [output] folder is 12, expected a folder such as "forgotten"']


def test_the_line_of_dotted_keys(tmp_path: Path) -> None:
    text = VALID.replace('forget = "forget.parquet"', 'forget.of = "train"\nforget.count = 0')
    assert problems_of(text, tmp_path) == ["line 6: [data] forget.count is 0, expected a whole number >= 1"]


def test_circles_of_sets_are_told_at_each_of_them(tmp_path: Path) -> None:
    sets = 'forget = { of = "train" }\ntrain = { of = "retain", count = 1 }\nretain = { of = "train" }'
    found = problems_of(changed(('forget = "forget.parquet"\ntrain = "train.parquet"', sets)), tmp_path)
    assert found == [
        "line 6: [data] train.of leads in a circle (train of retain of train); give one of them a path",
        "line 7: [data] retain.of leads in a circle (retain of train of retain); give one of them a path",
    ]


def test_weights_of_the_oracle_need_the_factory_too(tmp_path: Path) -> None:
    text = changed(('factory = "my.nets:build"\n', ""), ("safetensors", "pt2"))
    found = problems_of(text + '[oracle]\nretrained = "r.pt"\n', tmp_path)
    assert len(found) == 1
    assert found[0].startswith("line 10: [oracle] retrained is 'r.pt', which needs the factory of [model]")


RIGHT = [
    *(('factory = "my.nets:build"\nweights = "model.safetensors"', f'weights = "{weights}"')
      for weights in ("model.pt2", "m.skops", "m.skops\"\ntrusted = [\"a.b.C\"]\n#", "bert-base",
       "bert-1.5/", "M.PT2")),
    *(("model.safetensors", weights) for weights in ("m.pt", "m.PTH", "~/m.pt", "/far/away/m.pt", "sub/m.pt")),
    *(("[data]", f'device = "{device}"\n[data]') for device in ("cpu", "cuda", "cuda:0", "cuda:12", "mps")),
    *(('"forget.parquet"', source) for source in (
        '{ of = "train", ids = [1, "b"] }', '{ of = "train", ids = "ids.txt" }', '{ of = "train" }',
        '{ python = "a.b:c", arguments = { d = 1979-05-27, e = inf }, count = 3 }', '{ path = "x.csv", ids = [0] }')),
    *(("[method]", f"[method]\n{setting}") for setting in (
        "anchor = 1", "seed = 4294967295", 'parameters = "a.*"', 'parameters = ["a", "b"]', 'target = "corrected"',
        'target = "class-mean"', "penalty_share = 0")),
    *(("[method]", f"[oracle]\n{oracle}\n[method]") for oracle in (
        'file = "o.json"', 'retrained = "r.pt"', 'file = "o.json"\nretrained = "r.pt"',
        'weights = "s.pt"\nmembers = { of = "train", count = 5 }\nnonmembers = "n.csv"')),
    ("[method]", "[chain]\n[method]"),
    ("[method]", "[chain]\nmax_drift = 0\nmax_accuracy_loss = 1\n[method]"),
    ('train = "train.parquet"\n[method]\n[output]', '[output]\ncleaned = "none"'),
    ("[method]\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), RIGHT)
def test_right_jobs_are_accepted_and_json_ready(old: str, new: str, tmp_path: Path) -> None:
    job = job_of(changed((old, new)), tmp_path)
    assert json.loads(json.dumps(job.to_dict(), allow_nan=False)) == job.to_dict()


def test_values_arrive_as_they_were_written(tmp_path: Path) -> None:
    text = """\
[model]
weights = "~/w.pt"
factory = "a:b"
arguments = { classes = 10 }
[data]
forget = { of = "train", ids = [7, "seven"] }
train = { python = "a:load", arguments = { year = 2024 } }
retain = { of = "train", count = 50 }
size = [32, 24]
[method]
seed = 3
anchor = 2
[chain]
max_drift = 1
[output]
folder = "../out"
mask = true
"""
    job = job_of(text, tmp_path)
    assert job.path == tmp_path / "forsaken.toml"
    assert job.folder == tmp_path
    assert job.model.arguments == {"classes": 10}
    assert job.data.forget == Source(of="train", ids=[7, "seven"])
    assert job.data.sets.keys() == {"forget", "train", "retain"}
    assert job.data.size == (32, 24)
    assert (job.method.name, job.method.seed, job.method.settings) == ("forsaken", 3, {"anchor": 2})
    assert job.oracle is None
    assert isinstance(job.chain.max_drift, float)
    assert job.resolve(job.output.folder) == tmp_path / ".." / "out"
    assert job.resolve(job.model.weights) == Path.home() / "w.pt"
    assert job.resolve("/x") == Path("/x")
    assert job.to_dict() == {
        "model": {"weights": "~/w.pt", "factory": "a:b", "arguments": {"classes": 10}, "device": "cpu"},
        "data": {
            "forget": {"of": "train", "ids": 2},
            "retain": {"of": "train", "count": 50},
            "train": {"python": "a:load", "arguments": {"year": 2024}},
            "label": "label",
            "size": [32, 24],
        },
        "method": {"name": "forsaken", "seed": 3, "anchor": 2},
        "chain": {"max_drift": 1.0},
        "output": {"folder": "../out", "mask": True, "cleaned": "dataset", "per_record": False},
    }


def test_ids_appear_neither_in_the_settings_for_others_nor_when_printed(tmp_path: Path) -> None:
    job = job_of(changed(('"forget.parquet"', '{ of = "train", ids = ["anna@example.org"] }')), tmp_path)
    assert "anna" not in repr(job)
    assert "anna" not in json.dumps(job.to_dict())


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    job = job_of(VALID, tmp_path)
    with pytest.raises(ValidationError, match="frozen"):
        job.model.device = "cuda"  # type: ignore[misc]


@pytest.mark.parametrize("given", [{}, {"path": "a", "of": "b"}, {"python": "a:b", "path": "c"}])
def test_a_source_has_one_origin_however_it_is_made(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="exactly one of path, python, of"):
        Source(**given)


# The file itself


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "forsaken.toml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode())
    assert read_job(str(path)).data.forget.path == "forget.parquet"
    path.write_bytes(path.read_bytes().replace(b'"out"', b"1"))
    with pytest.raises(SettingsError, match=r"line 9: \[output\] folder is 1"):
        read_job(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"no job file .*job\.toml; .* forsaken init"):
        read_job(tmp_path / "job.toml")
    with pytest.raises(DataNotFoundError, match="no job file"):
        read_job("a\0b")


def test_a_folder_names_the_file_to_give(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"is not a file, expected a job file such as .*forsaken\.toml"):
        read_job(tmp_path)


def test_a_name_that_cannot_be_looked_up(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the job file"):
        read_job(tmp_path / ("x" * 300))


@pytest.mark.parametrize(("content", "words"), [
    (b"[model]\nweights = 'caf\xe9'\n", "line 2 is not UTF-8; save the file as UTF-8"),
    (b"[model]\nweights = model.pt\n", r"is not TOML: Invalid value \(at line 2, column 11\), expected lines such as"),
    (b"[model]\n[model]\n", "is not TOML: .* twice .*line 2"),
    (b"#" * (2**20 + 1), "larger than 1 MiB"),
    (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    (b".".join([b"a"] * 500) + b" = 1", "nested too deeply"),
    (b"a = " + b"9" * 5000, "number of too many digits"),
    (b"[method]\nseed = 1\nhistory = 0x" + b"f" * 5000,
     r"line 3: \[method\] history is a whole number of more than 64 bits"),
    (b"[data]\nforget = { path = 'a', ids = [9223372036854775808] }",
     r"line 2: \[data\] forget\.ids is a whole number of more"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_says_why(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=words):
        read_job(tmp_path / "job.toml")


# The template


def uncommented(text: str) -> str:
    """Return the template with every optional setting in use: a # without a space after it marks one."""
    return re.sub(r"^#(?=[\w\[])", "", text, flags=re.MULTILINE)


def without(text: str, *keys: str) -> str:
    return re.sub(rf"^({'|'.join(keys)}) = .*\n", "", text, flags=re.MULTILINE)


def test_the_template_is_short_and_valid_as_it_stands(tmp_path: Path) -> None:
    assert len(TEMPLATE.splitlines()) < 180
    assert max(map(len, TEMPLATE.splitlines())) <= 120
    job = job_of(TEMPLATE, tmp_path)
    assert job.model.weights == "model.safetensors"
    assert "restore the memory" in TEMPLATE


def test_every_setting_is_in_the_template() -> None:
    raw = tomllib.loads(uncommented(TEMPLATE))
    assert list(raw) == list(TABLES)
    for name, kind in TABLES.items():
        assert set(kind.model_fields) - {"settings"} <= set(raw[name]), name
    for key in Source.model_fields:
        assert re.search(rf"^#   {{.*\b{key} = ", TEMPLATE, re.MULTILINE), key


def test_the_template_s_defaults_are_the_defaults(tmp_path: Path) -> None:
    plain, full = (
        job_of(text, tmp_path) for text in (TEMPLATE, without(uncommented(TEMPLATE), "file", "trusted", "base"))
    )
    for table, key in [("model", "device"), ("data", "label"), ("method", "name"), ("method", "seed"),
                       ("output", "mask"),
                       ("output", "cleaned")]:  # fmt: skip
        assert getattr(getattr(plain, table), key) == getattr(getattr(full, table), key), key


def test_every_optional_setting_of_the_template_can_be_used(tmp_path: Path) -> None:
    full = uncommented(TEMPLATE)
    shadow = job_of(without(full, "file", "trusted", "base"), tmp_path)
    assert shadow.oracle is not None
    assert shadow.oracle.nonmembers == Source(path="shadow-nonmembers.parquet")
    assert shadow.chain.max_accuracy_loss == 0.02
    head, tail = full.split("[oracle]")
    saved = job_of(
        without(head, "trusted", "base") + "[oracle]" + without(tail, "weights", "members", "nonmembers"), tmp_path
    )
    assert saved.oracle is not None
    assert saved.oracle.file == "oracle.json"
    learnt = without(full, "factory", "arguments", "base", "file", "weights", "members", "nonmembers", "retrained")
    learnt = learnt.replace("[model]", '[model]\nweights = "model.skops"').replace(
        "[oracle]", '[oracle]\nfile = "o.json"'
    )
    assert job_of(learnt, tmp_path).model.trusted == ("my_package.MyType",)


def test_every_example_of_a_set_in_the_template_works(tmp_path: Path) -> None:
    examples = re.findall(r"^#   (\{.*\}) {3,}", TEMPLATE, re.MULTILINE)
    assert len(examples) == 4
    for example in examples:
        job_of(changed(('"forget.parquet"', example)), tmp_path)


# Whatever else people write

KEYS = sorted(
    {key for kind in (*TABLES.values(), Source) for key in kind.model_fields} | {"target", "stop", "penalty", "x y"}
)
SCALARS = st.one_of(
    st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5), st.dates(), st.times(),
    st.sampled_from(["train", "a:b", "m.pt", "m.pkl", "m.skops", "forsaken", "class-mean", "\0",
     "~x/y", "cpu", "dataset"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def toml(value: Any) -> str:
    """Write a value as TOML; independent of what is tested."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(value)
    return str(value.isoformat())


def surrogate_free(text: str) -> bool:
    # JSON writes characters beyond 16 bits as pairs, which TOML refuses.
    return not re.search(r"\\ud[89a-f]", text)


def outcome(text: str, folder: Path) -> None:
    try:
        found = job_of(text, folder)
    except SettingsError as error:
        told = str(error)
        assert "is not TOML" not in told
        assert "pydantic" not in told
        assert "Traceback" not in told
        assert all(line.startswith("  - ") for line in told.split("\n")[1:])
    else:
        json.dumps(found.to_dict(), allow_nan=False)


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from([*TABLES, "modle", "path"]), st.dictionaries(st.sampled_from(KEYS), VALUES) | VALUES
    )
)
def test_any_tables_give_a_job_or_problems_in_words(tmp_path: Path, raw: dict[str, Any]) -> None:
    text = "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in raw.items())
    if surrogate_free(text):
        outcome(text, tmp_path)


@FUZZ
@given(st.data())
def test_a_valid_job_with_changes_gives_a_job_or_problems_in_words(tmp_path: Path, data: st.DataObject) -> None:
    raw = tomllib.loads(without(uncommented(TEMPLATE), "file", "trusted"))
    for _ in range(data.draw(st.integers(1, 4))):
        table = data.draw(st.sampled_from(sorted(raw)))
        key = data.draw(st.sampled_from([*raw[table], *KEYS]))
        if data.draw(st.booleans()) and key in raw[table]:
            del raw[table][key]
        else:
            raw[table][key] = data.draw(VALUES)
    text = "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in raw.items())
    if surrogate_free(text):
        outcome(text, tmp_path)
