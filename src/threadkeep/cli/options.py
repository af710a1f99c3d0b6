"""The options that several commands have, each described once."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]
UserId = Annotated[str | None, typer.Option("--user", metavar="ID", help="This user's sessions only.")]
SessionIdArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id, such as telegram:123.")]
RunIdArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
RunUser = Annotated[str | None, typer.Option("--user", metavar="ID", help="Only if this user asked for it.")]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
