"""`forsaken keys`: new keys for the hashes of records and for signatures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from forsaken.cli.console import say

app = typer.Typer(no_args_is_help=True, help="Keys: make one for the hashes of records, or a pair for signatures.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
File = Annotated[Path, typer.Argument(help="The file to write; one that is there is never overwritten.")]


@app.command("new-record")
def new_record(file: File, as_json: AsJson = False) -> None:
    """Make the secret key of the hashes of records, for record_key in a job file.

    Example: forsaken keys new-record records.key
    """
    from forsaken._keys import new_record_key, write_record_key

    write_record_key(file, new_record_key())
    if as_json:
        typer.echo(json.dumps({"record_key": str(file)}))
        return
    say(f"record key: {file}\nKeep it secret and safe: whoever has it can check guesses at the forgotten records.")


@app.command("new-signing")
def new_signing(file: File, as_json: AsJson = False) -> None:
    """Make a pair of keys for certificates: FILE signs, FILE.pub lets others check.

    Where the environment variable FORSAKEN_PASSPHRASE is set, the private key is encrypted with it.

    Example: forsaken keys new-signing signing.pem
    """
    from forsaken._keys import PASSPHRASE, key_id, new_signing_key, write_signing_keys

    key = new_signing_key()
    private, public = write_signing_keys(file, key)
    name, locked = key_id(key.public_key()), bool(os.environ.get(PASSPHRASE))
    if as_json:
        facts = {"signing_key": str(private), "public_key": str(public), "key_id": name, "encrypted": locked}
        typer.echo(json.dumps(facts))
        return
    how = f"encrypted with {PASSPHRASE}" if locked else "not encrypted"
    say(f"private key: {private} ({how}; keep it secret)\npublic key: {public} (hand it out)\nkey id: {name}")
