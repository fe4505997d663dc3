"""The command for API tokens: `python -m edge.tokens create | list | revoke`.

A token is shown once, when it is made; the file keeps a hash of it. A running edge with the same file
takes and refuses tokens within a second, without a restart.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from edge.auth.grants import (
    PREDICTIONS,
    Grant,
    GrantsError,
    Limits,
    Scope,
    check_owner,
    parse_scopes,
)
from edge.auth.token_file import add_grant, read_grants, remove_grant
from edge.settings import DEFAULT_TOKENS_FILE, SettingsError, load_settings

_SPAN: Final = re.compile(r"([0-9]{1,6})(m|h|d)")
_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        path: Path = options.file or _configured_file()
        match options.command:
            case "create":
                return create(path, options)
            case "list":
                return show(path)
            case _:
                return revoke(path, options.id)
    except (GrantsError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 2


def create(path: Path, options: argparse.Namespace) -> int:
    """Make a token; it alone goes to standard output, so that a script can take it."""
    check_owner(options.owner)
    scopes = parse_scopes(options.scopes.split(",")) if options.scopes else PREDICTIONS
    limits = Limits(options.creates_per_minute, options.requests_per_minute, options.concurrency)
    now = datetime.now(UTC).replace(microsecond=0)
    expires = None if options.expires is None else now + options.expires

    def make(token_id: str, hashed: str) -> Grant:
        return Grant(token_id, hashed, options.owner, scopes, now, expires, limits)

    token, grant = add_grant(path, make)
    until = "never expires" if expires is None else f"expires {expires:%Y-%m-%d %H:%M} UTC"
    print(f"Token {grant.id} of {grant.owner}, {_scopes(grant)}, {until}, in {path}.", file=sys.stderr)
    print("It is shown this once; only a hash of it is kept:", file=sys.stderr)
    print(token.text)
    print(f"The edge asks for tokens when it is started with EDGE_TOKENS_FILE={path}", file=sys.stderr)
    return 0


def show(path: Path) -> int:
    """List the tokens, one a line, without anything secret."""
    try:
        grants = read_grants(path).grants
    except FileNotFoundError:
        print(f"there is no file {path}", file=sys.stderr)
        return 1
    now = datetime.now(UTC)
    for grant in grants:
        expires = "never" if grant.expires_at is None else f"{grant.expires_at:%Y-%m-%dT%H:%MZ}"
        state = "expired" if grant.is_expired(now) else "good"
        print(f"{grant.id}  {grant.owner}  {_scopes(grant)}  {grant.created_at:%Y-%m-%d}  {expires}  {state}")
    return 0


def revoke(path: Path, token_id: str) -> int:
    """Take a token away."""
    gone = remove_grant(path, token_id)
    if gone is None:
        print(f"there is no token {token_id!r:.40} in {path}", file=sys.stderr)
        return 1
    print(f"Token {gone.id} of {gone.owner} is revoked.", file=sys.stderr)
    return 0


def _configured_file() -> Path:
    configured = load_settings().tokens_file
    return Path(configured or DEFAULT_TOKENS_FILE)


def _scopes(grant: Grant) -> str:
    return ",".join(scope.value for scope in Scope if scope in grant.scopes)


def _span(text: str) -> timedelta:
    match = _SPAN.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError("write a span as 30m, 12h or 90d")
    return int(match[1]) * _UNITS[match[2]]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number, at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m edge.tokens", description="API tokens of the edge.")
    parser.add_argument(
        "--file", type=Path, help=f"file of tokens; else EDGE_TOKENS_FILE, else {DEFAULT_TOKENS_FILE}"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("create", help="make a token and print it once")
    making.add_argument("--owner", required=True, help="whose predictions it makes and sees")
    names = ", ".join(scope.value for scope in Scope)
    making.add_argument("--scopes", default="", help=f"by comma, of {names}; default: all but admin")
    making.add_argument("--expires", type=_span, help="30m, 12h or 90d from now; default: never")
    making.add_argument("--creates-per-minute", type=_count, help="default: the edge's setting")
    making.add_argument("--requests-per-minute", type=_count, help="all else; default: the edge's setting")
    making.add_argument("--concurrency", type=_count, help="open requests; default: the edge's setting")
    commands.add_parser("list", help="list tokens by id")
    revoking = commands.add_parser("revoke", help="take a token away")
    revoking.add_argument("id", help="the 8 characters after tr_")
    return parser


if __name__ == "__main__":
    sys.exit(main())
