"""`forsaken verify`: whether a certificate holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from forsaken.cli.console import Terminal, say, verdict_text
from forsaken.cli.exits import Exit, of_certificate
from forsaken.errors import CertificateError, SettingsError

if TYPE_CHECKING:
    from forsaken.jobs.certificate import Certificate
    from forsaken.jobs.verify import Verification

_ANSWERS = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "not checked"}


def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate.")],
    weights: Annotated[Path, typer.Option(help="The weights that are said to have forgotten.")],
    public_key: Annotated[
        list[Path] | None, typer.Option(help="The public key (PEM) that must have signed; one of them, if repeated.")
    ] = None,
    any_signer: Annotated[
        bool, typer.Option("--any-signer", help="Check all but who signed. The answer is never: verified.")
    ] = False,
    records: Annotated[Path | None, typer.Option(help="Records that must be among the forgotten ones.")] = None,
    record_key: Annotated[Path | None, typer.Option(help="The key of the hashes of the records.")] = None,
    previous: Annotated[list[Path] | None, typer.Option(help="An earlier certificate; may be repeated.")] = None,
    chain: Annotated[
        bool,
        typer.Option(
            "--chain", help="Look for --records in earlier requests too; their folders lie beside this certificate's."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a list.")] = False,
) -> None:
    """Check a certificate against the weights, its signature, records and the certificates before it.

    The first line is what the certificate says about the forgetting; then follow the checks. Where an audit that was
    made later, and lies beside the certificate, says failed, that counts.

    Exit code 0: no check failed, and it says forgotten; 5: no check failed, and it says not shown; 4: it says failed;
    3: a check failed, or the certificate is damaged; 2: something could not be read, or it was not said whose signature
    is expected.

    Example: forsaken verify out/certificate.json --weights out/model.safetensors --public-key signing.pem.pub
    """
    from forsaken._keys import read_public_key, read_record_key
    from forsaken.jobs.certificate import Certificate
    from forsaken.jobs.verify import verify_certificate

    if bool(public_key) == any_signer:
        raise SettingsError(
            "--public-key and --any-signer contradict each other; give one of them"
            if any_signer
            else "it is not said who must have signed, and anyone can write and sign a certificate; give the signer's "
            "public key, known from elsewhere, with --public-key, or check all but the signer with --any-signer"
        )
    if (records is None) != (record_key is None):
        given, other = ("--records", "--record-key") if records else ("--record-key", "--records")
        raise SettingsError(
            f"{given} is given without {other}; records are compared by hashes under that key, give both"
        )
    keys = [read_public_key(path) for path in public_key or ()]
    secret = read_record_key(record_key) if record_key else None
    try:
        stated = Certificate.read(certificate)
        earlier = [Certificate.read(path) for path in previous or ()]
    except CertificateError as error:
        # Whatever else holds: a certificate that is not as it was written is a failed verification.
        told = f"NOT verified: {error}."
        if as_json:
            facts = {"certificate": str(certificate), "verified": False, "checks": [], "verdict": told}
            typer.echo(json.dumps(facts))
        else:
            say(f"[bold red]{escape(told)}[/]", markup=True)
        raise typer.Exit(Exit.CHECK_FAILED) from error
    found = verify_certificate(
        stated,
        weights,
        keys=keys,
        records=records,
        record_key=secret,
        previous=earlier,
        folder=certificate.parent,
        chain=chain,
    )
    if as_json:
        typer.echo(json.dumps(_facts(certificate, stated, found)))
    else:
        _show(found)
    raise typer.Exit(of_certificate(found.forgetting, passed=found.passed))


def _facts(path: Path, stated: Certificate, found: Verification) -> dict[str, object]:
    return {
        "certificate": str(path),
        "sha256": stated.sha256,
        "verified": found.verified,
        "signer": found.signer,
        "checks": [asdict(check) for check in found.checks],
        "models_owe": found.owed,
        "verdict": found.verdict,
        "forgetting": found.forgetting.word,
        "line": found.forgetting.line,
        "audits": {name: verdict.word for name, verdict in found.audits.items()},
    }


def _show(found: Verification) -> None:
    console = Terminal()
    console.print(f"The certificate says: {verdict_text(found.stated)}", highlight=False, soft_wrap=True)
    for name, verdict in found.audits.items():
        if verdict.word == "failed":
            told = f"{name}, made after the certificate, says: {verdict_text(verdict)}"
            console.print(told, highlight=False, soft_wrap=True)
    lines = Table.grid(padding=(0, 2))
    for _ in range(3):
        lines.add_column(overflow="fold")  # a hash must be shown to its last digit
    for check in found.checks:
        lines.add_row(check.name, _ANSWERS[check.passed], escape(check.words))
    console.print(lines, highlight=False)
    sure = found.verified and found.forgetting.word == "forgotten" and not found.owed
    colour = "green" if sure else "yellow" if found.passed else "bold red"
    console.print(f"[{colour}]{escape(found.verdict)}[/]", highlight=False, soft_wrap=True)
