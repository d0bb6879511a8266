"""Functions of the user's: how they are found and called, and what is told when they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forsaken.errors import InputError, SettingsError
from forsaken.jobs.code import call, find, user_code


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with user_code(tmp_path):
        yield tmp_path


def module(home: Path, text: str, name: str = "of_mine") -> None:
    (home / f"{name}.py").write_text(text)


def test_a_module_beside_the_job_is_found(home: Path) -> None:
    module(home, "def build(): return 7")
    assert find("of_mine:build", "[model] factory")() == 7


def test_modules_of_one_job_are_not_those_of_the_next(tmp_path: Path) -> None:
    path = list(sys.path)
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        module(folder, f"def build(): return {number}")
        with user_code(folder):
            assert find("of_mine:build", "key")() == number
        assert "of_mine" not in sys.modules
    assert sys.path == path


def test_modules_are_put_away_after_an_error_too(tmp_path: Path) -> None:
    path = list(sys.path)
    module(tmp_path, "def build(): raise ValueError")
    with pytest.raises(SettingsError), user_code(tmp_path):
        call(find("of_mine:build", "key"), "key")
    assert "of_mine" not in sys.modules
    assert sys.path == path


def test_packages_and_modules_that_import_each_other(home: Path) -> None:
    (home / "pack").mkdir()
    (home / "pack" / "__init__.py").touch()
    (home / "pack" / "one.py").write_text("from pack.two import number\ndef build(): return number")
    (home / "pack" / "two.py").write_text("number = 3")
    assert find("pack.one:build", "key")() == 3


@pytest.mark.parametrize(
    ("reference", "text", "words"),
    [
        ("nowhere:build", "", ["no module 'nowhere'", "nowhere.py beside the job"]),
        ("nowhere.deep:build", "", ["no module 'nowhere.deep'", "nowhere/deep.py"]),
        ("of_mine:build", "import not_installed_at_all", ["needs the module 'not_installed_at_all'", "install it"]),
        ("of_mine:build", "def make(): pass\nclass Net: pass", ["no function 'build'", "found: Net, make"]),
        ("of_mine:build", "build = 5", ["no function 'build'", "found: none"]),
        ("of_mine:build", "1 / 0", ["importing of_mine failed", "ZeroDivisionError at of_mine.py, line 1"]),
        ("of_mine:build", "def build(:", ["importing of_mine failed", "SyntaxError"]),
        ("of_mine:build", "import sys\nsys.exit(0)", ["importing of_mine failed", "SystemExit"]),
    ],
)
def test_what_cannot_be_found_is_told(home: Path, reference: str, text: str, words: list[str]) -> None:
    module(home, text)
    with pytest.raises(SettingsError) as found:
        find(reference, "[model] factory")
    assert f"[model] factory = '{reference}'" in str(found.value)
    for word in words:
        assert word in str(found.value)


def test_what_a_module_or_function_prints_goes_to_standard_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module(home, "print('importing')\ndef build():\n    print('building')\n    return 1")
    assert call(find("of_mine:build", "key"), "key") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == ["importing", "building"]


def test_an_error_says_where_and_what(home: Path) -> None:
    module(home, "def build(classes):\n    raise KeyError(f'no {classes}\\nsecond line')")
    with pytest.raises(SettingsError, match=r"factory failed with KeyError at of_mine\.py, line 2") as found:
        call(find("of_mine:build", "key"), "[model] factory", classes=9)
    assert "no 9" in str(found.value)
    assert isinstance(found.value.__cause__, KeyError)


def test_a_secret_error_says_where_but_not_what(home: Path) -> None:
    module(home, "def read(row):\n    raise ValueError(f'cannot parse {row}')")
    with pytest.raises(SettingsError, match=r"ValueError at of_mine\.py, line 2") as found:
        call(find("of_mine:read", "key"), "key", "my diary", secret=True)
    assert "my diary" not in str(found.value)
    assert "not shown" in str(found.value)
    assert found.value.__cause__ is None
    assert found.value.__suppress_context__


def test_an_error_of_the_house_keeps_its_kind_unless_it_is_secret() -> None:
    def fail() -> None:
        raise InputError("row 3: my diary")

    with pytest.raises(InputError, match="my diary"):
        call(fail, "key")
    with pytest.raises(SettingsError) as found:
        call(fail, "key", secret=True)
    assert "my diary" not in str(found.value)


def test_a_function_that_leaves_the_program_is_an_error(home: Path) -> None:
    module(home, "import sys\ndef build(): sys.exit(0)")
    with pytest.raises(SettingsError, match="SystemExit"):
        call(find("of_mine:build", "key"), "key")


def test_ctrl_c_is_no_error_of_the_user() -> None:
    def wait() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(wait, "key")


def test_a_missing_argument_is_told() -> None:
    def build(classes: int) -> int:
        return classes

    with pytest.raises(SettingsError, match=r"TypeError.*colours"):
        call(build, "[model] factory", colours=2)
