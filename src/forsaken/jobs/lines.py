"""On which line of a TOML file each table and key stands: tomllib does not say."""

from __future__ import annotations

import re
import tomllib

_PIECE = re.compile(
    r"""
      (?P<comment> \#[^\n]* )
    | (?P<long> \"{3} (?:\\.|[^\\])*? \"{3,5} | '{3} .*? '{3,5} )
    | (?P<quoted> \" (?:\\.|[^"\\\n])* \" | '[^'\n]*' )
    | (?P<bare> [A-Za-z0-9_-]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)

Where = tuple[str, ...]


def locate(text: str) -> dict[Where, int]:
    r"""Return the line, counted from 1, of every table and key of TOML text that `tomllib` accepts.

    Keys of an array of tables go by the path of the array, without an index, and the first of them counts.

    >>> locate('[model]\nweights = "a"\n[data]\nforget = { of = "train" }\n')[("data", "forget", "of")]
    4
    """
    scan = _Scan()
    for match in _PIECE.finditer(text + "\n"):
        scan.take(match.lastgroup or "", match[0])
    return scan.implied | scan.written


class _Scan:
    """Where a scan of TOML text is: in which nesting, before or after which equals sign."""

    def __init__(self) -> None:
        self.written: dict[Where, int] = {}
        self.implied: dict[Where, int] = {}  # tables that only a longer name mentions, such as a in [a.b]
        self.line = 1
        self.state = "key"  # or "header" or "value"
        self.parts: list[str] = []  # of the name that is being read
        self.path: Where = ()  # of the value that is being read
        self.nests: list[tuple[str, Where]] = [("file", ())]  # what each bracket opened, and the table it is in

    def take(self, kind: str, piece: str) -> None:
        """Read one more piece."""
        if kind in ("bare", "quoted") and self.state != "value":
            self.parts.append(piece if kind == "bare" else str(tomllib.loads(f"key = {piece}")["key"]))
        elif kind == "other":
            self._sign(piece)
        self.line += piece.count("\n")

    def _sign(self, piece: str) -> None:
        nest, table = self.nests[-1]
        if piece == "\n" and nest == "file":
            if self.state == "header":
                self.nests = [("file", self._note(()))]
            self._expect_key()
        elif self.state == "header":
            return
        elif piece == "[" and self.state == "key":
            self.state = "header"
        elif piece == "=" and self.state == "key":
            self.path = self._note(table)
            self.state = "value"
        elif piece in ("[", "{"):
            self.nests.append((piece, self.path))
            if piece == "{":
                self._expect_key()
        elif piece in ("]", "}"):
            self.path = self.nests.pop()[1]
            self.state = "value"
        elif piece == "," and nest == "{":
            self._expect_key()

    def _expect_key(self) -> None:
        self.state, self.parts = "key", []

    def _note(self, table: Where) -> Where:
        path = (*table, *self.parts)
        self.written.setdefault(path, self.line)
        for end in range(1, len(path)):
            self.implied.setdefault(path[:end], self.line)
        return path
