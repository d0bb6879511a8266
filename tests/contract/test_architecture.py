"""The architecture is a test: imports point one way, and the public surface is what it says."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import forsaken

ROOT = Path(forsaken.__file__).parent
# From the top down; a room imports from itself and from rooms above it.
ROOMS = [
    "",
    "data",
    "sets",
    "models",
    "metrics",
    "oracles",
    "references",
    "unlearning",
    "auditing",
    "federated",
    "jobs",
    "integrations",
    "bench",
]
ROOMS += ["report", "cli"]
FILES = sorted(ROOT.rglob("*.py"))


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def name_of(path: Path) -> str:
    return ".".join(["forsaken", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


@pytest.mark.parametrize("path", [p for p in FILES if p != ROOT / "__init__.py"], ids=name_of)
def test_imports_point_up(path: Path) -> None:
    here = ROOMS.index(room_of(name_of(path)))
    for module in imports(path):
        if module.startswith("forsaken."):
            there = room_of(module)
            assert ROOMS.index(there) <= here, f"{name_of(path)} imports {module}, which is below it"
        if module == "forsaken":
            assert room_of(name_of(path)) == "cli", "only the command line may import the whole package"


@pytest.mark.parametrize("path", sorted((ROOT / "metrics").glob("*.py")), ids=name_of)
def test_metrics_are_pure(path: Path) -> None:
    assert not any(module.split(".")[0] in {"torch", "pathlib", "os"} for module in imports(path))


def test_every_public_name_exists() -> None:
    for name in forsaken.__all__:
        assert hasattr(forsaken, name)
    for name in forsaken.errors.__all__:
        assert issubclass(getattr(forsaken.errors, name), forsaken.ForsakenError)


def test_no_import_cycle() -> None:
    graph = {name_of(p): [m for m in imports(p) if m.startswith("forsaken.")] for p in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for other in graph.get(module, []):
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled(path: Path) -> None:
    own = (
        {"joblib"} if path == ROOT / "engine.py" else set()
    )  # its processes send each other nothing but our own objects
    assert not {"pickle", "dill", "joblib", "cloudpickle"} & {module.split(".")[0] for module in imports(path)} - own
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "np.load", "numpy.load"}:
            safe = {"weights_only": "True", "allow_pickle": "False"}
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert any(given.get(key) == value for key, value in safe.items()), ast.unparse(node)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_flower_stays_in_its_room(path: Path) -> None:
    found = [module for module in imports(path) if module.split(".")[0] == "flwr"]
    assert not found or path.parent == ROOT / "federated", found


def test_the_package_and_its_command_line_start_without_flower() -> None:
    code = "import sys, forsaken, forsaken.cli.main; forsaken.unlearn; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_federated_room_says_which_extra_it_needs() -> None:
    blocked = "import sys, importlib.util as u; find = u.find_spec"
    blocked += "; u.find_spec = lambda name, *rest: None if name == 'flwr' else find(name, *rest)"
    code = f"{blocked}; import forsaken.federated"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "SettingsError: Flower is not installed" in done.stderr
    assert "pip install 'forsaken[federated]'" in done.stderr


WRITERS = {
    "np.save",
    "np.savez",
    "np.savez_compressed",
    "torch.save",
    "torch.export.save",
    "pq.write_table",
    "pa.csv.write_csv",
    "skops.io.dump",
    "json.dump",
}
HANDLES = {"file", "out", "buffer", "packed"}  # what `create` opened, or bytes in memory
CHANGES = {"write_text", "write_bytes", "rename", "unlink", "mkdir", "touch", "symlink_to", "hardlink_to", "save_file"}
OF_THE_SYSTEM = {
    f"os.{name}" for name in ("open", "fdopen", "replace", "rename", "remove", "makedirs", "link", "symlink")
}


def writes(node: ast.AST) -> bool:
    """Whether a part of a program changes a file by itself."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        return bool({"shutil", "tempfile"} & set(names))
    if not isinstance(node, ast.Call):
        return False
    name, given = ast.unparse(node.func), node.args
    last = name.rpartition(".")[2]
    if last == "open":
        mode = [
            each.value for each in (*given, *(key.value for key in node.keywords)) if isinstance(each, ast.Constant)
        ]
        return any(isinstance(each, str) and len(each) <= 3 and set(each) & set("wax+") for each in mode)
    if name in WRITERS:
        return not any(isinstance(each, ast.Name) and each.id in HANDLES for each in given)
    moved = last == "replace" and isinstance(node.func, ast.Attribute) and len(given) == 1 and not node.keywords
    return name in OF_THE_SYSTEM or moved or (last in CHANGES and isinstance(node.func, ast.Attribute))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_written_in_one_place(path: Path) -> None:
    """`_files` writes, flushes and renames; whatever writes past it may be half there after a kill or a power cut."""
    found = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if writes(node)]
    if path == ROOT / "_files.py":
        assert len(found) > 5, "the test sees what writes"
    elif path == ROOT / "unlearning" / "sisa" / "training.py":
        assert len(found) == 2, "a folder that is gone with the process: tempfile, and shutil to remove it"
    elif path.parent == ROOT / "integrations" or path == ROOT / "bench" / "rows.py":
        assert [ast.unparse(node) for node in found] in ([], ["import tempfile"]), (
            "a folder that is gone when it is left"
        )
    else:
        assert not found, [ast.unparse(node) for node in found]


def test_every_module_imports() -> None:
    for path in FILES:
        importlib.import_module(name_of(path))


def test_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert forsaken.__version__ == version("forsaken")


def test_the_command_line_starts_without_torch() -> None:
    # completion starts the program at every press of TAB
    code = "import sys, forsaken.cli.main; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_certificate_is_checked_and_a_page_begun_without_torch() -> None:
    code = "import sys, forsaken.jobs.verify, forsaken.report.page; "
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'sklearn')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_page_knows_the_target_by_its_name() -> None:
    from forsaken.report import words
    from forsaken.unlearning.forsaken import targets

    assert words.OUT_OF_FOLD == targets.OUT_OF_FOLD
