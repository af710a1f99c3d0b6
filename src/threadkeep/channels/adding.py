"""Adding a bot to the file of the channels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from threadkeep.channels.configuration import read_channels
from threadkeep.errors import InvalidInput
from threadkeep.records import Json


def add_bot(path: Path, fields: Mapping[str, Json], environment: Mapping[str, str]) -> None:
    """Append a bot to the file, or create the file; nobody else may read it, because it can hold secrets.

    Comments and the order of the file stay as they are.

    Raises:
        InvalidInput: the result would not be valid, or the file's `channels` are not a list at its end.
    """
    lines = yaml.safe_dump([dict(fields)], sort_keys=False, allow_unicode=True)
    text = _read(path)
    if text.strip():
        indent = _indent_of_last_list(path, text)
        added = "".join(f"{' ' * indent}{line}\n" for line in lines.splitlines())
        content = f"{text.rstrip()}\n{added}"
    else:
        content = f"channels:\n{lines}"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        try:
            read_channels(Path(name), environment)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace(name, str(path))) from None
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _indent_of_last_list(path: Path, text: str) -> int:
    """Return the column of the items of `channels`, which must be the last key of the file, in block style."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        root = None
    if isinstance(root, yaml.MappingNode) and root.value:
        key, value = root.value[-1]
        if key.value == "channels" and isinstance(value, yaml.SequenceNode) and not value.flow_style:
            return int(value.start_mark.column)
    raise InvalidInput(f"{path}: a bot is appended to a block list `channels` at the end of the file; add it by hand.")
