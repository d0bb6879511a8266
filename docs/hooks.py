"""What the documentation site needs beyond the folder docs: pages and files of the repository that its pages link to.

A link such as ../../benchmarks/notes/audit.md leads out of the folder. The page behind it becomes a page of the site,
and any other file is copied, under the path that it has in the repository; so every link is checked.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository"  # the folder of the site with what lies outside docs
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def on_files(files, config):
    """Add every page and file outside docs that a page links to, and those that they link to."""
    todo = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    seen = set(todo)
    while todo:
        page = todo.pop()
        for target in _targets(page):
            if target in seen or target.is_relative_to(ROOT / "docs"):
                continue
            seen.add(target)
            files.append(File.generated(config, _place(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                todo.append(target)
    return files


def on_page_markdown(markdown, page, **_):
    """Let links that lead out of docs lead to where the site has their targets."""
    here = posixpath.dirname(page.file.src_uri)
    source = Path(page.file.abs_src_path)

    def changed(match):
        target = _resolved(source, match[2])
        if target is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(_place(target), here or '.')}{match[3]}"

    parts = _CODE.split(markdown)
    return "".join(part if at % 2 else _LINK.sub(changed, part) for at, part in enumerate(parts))


def _targets(page):
    prose = _CODE.sub("", page.read_text(encoding="utf-8"))
    return filter(None, (_resolved(page, match[2]) for match in _LINK.finditer(prose)))


def _resolved(page, link):
    """Return the file that a link leads to, of a folder its README; None for what is no file of the repository."""
    target = Path(os.path.normpath(page.parent / link))
    if target.is_dir():
        target = target / "README.md"
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def _place(target):
    """Return the path in the site; README.md would be the index of its folder, and take the place of another page."""
    inside = target.relative_to(ROOT)
    if inside.parts[0] == "docs":
        return inside.relative_to("docs").as_posix()
    return f"{OUTSIDE}/{inside.as_posix()}"
