"""A YAML reader that records positions, and rejects tags, anchors and duplicate names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

import yaml

from threadkeep.errors import InvalidWorkflow, WorkflowProblem
from threadkeep.records import Json

MOST_CHARACTERS = 256_000
_MOST_DEPTH = 24
_MOST_NODES = 20_000

type Path = tuple[str | int, ...]

# The types of YAML 1.2, in which `no`, `on`, 12:30, 1_000 and dates are plain text.
_TRUTHS = {"true": True, "false": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]{1,18}(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
_PLAIN = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "bool", "int", "float", "timestamp", "value"))


class Position(NamedTuple):
    """A line and a column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class YamlSource:
    """The value of a YAML file, with the positions of the values and keys in the file."""

    value: Json
    file: str | None
    values: dict[Path, Position] = field(default_factory=dict)
    keys: dict[Path, Position] = field(default_factory=dict)

    def problem(self, sentence: str, path: Path, *, at_key: bool = False) -> WorkflowProblem:
        """Return a problem with the position of a path, or of its nearest parent in the file."""
        position = None
        while position is None:
            position = (self.keys.get(path) if at_key else None) or self.values.get(path)
            if not path:
                break
            path = path[:-1]
        line, column = position or (None, None)
        return WorkflowProblem(sentence, self.file, line, column)


def read_yaml(text: str, file: str | None = None) -> YamlSource:
    """Return the value of a YAML document, with the positions of its parts.

    Raises:
        InvalidWorkflow: the text is not YAML, is too long or empty, or uses a feature that is not allowed.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidWorkflow([WorkflowProblem(f"A workflow may have at most {MOST_CHARACTERS} characters.", file)])
    try:
        _check_events(text, file)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except InvalidWorkflow:
        raise
    except yaml.MarkedYAMLError as error:
        raise _broken(_syntax_sentence(error), file, error.problem_mark or error.context_mark) from None
    except yaml.reader.ReaderError as error:
        raise _invalid_character(text, error.position, file) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise InvalidWorkflow(
            [WorkflowProblem("This cannot be read as YAML; check that it is text in UTF-8.", file)]
        ) from None
    if node is None:
        raise InvalidWorkflow(
            [WorkflowProblem("The file is empty; write a workflow, with schema, name and nodes.", file)]
        )
    reader = _Reader(file)
    value = reader.read(node, ())
    return YamlSource(value, file, reader.values, reader.keys)


def _syntax_sentence(error: yaml.MarkedYAMLError) -> str:
    what = ", ".join(filter(None, (error.context, error.problem))) or "this cannot be read"
    if "\\t" in what:
        cure = "indent with spaces, not with tabs"
    elif "another document" in what:
        cure = "a file has one workflow, so move the rest to another file"
    else:
        cure = "correct it here, or above at its beginning; put text with braces or colons in quotes"
    return f"This is not YAML: {what}; {cure}."


def _invalid_character(text: str, position: int, file: str | None) -> InvalidWorkflow:
    sentence = f"This character is not allowed in text (U+{ord(text[position]):04X}); remove it."
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return InvalidWorkflow([WorkflowProblem(sentence, file, line, column)])


def _check_events(text: str, file: str | None) -> None:
    """Check the size, depth and features of a document before its value is built."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _broken("Aliases (*name) are not allowed in workflows; repeat the value.", file, event.start_mark)
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if event.anchor is not None:
                raise _broken("Anchors (&name) are not allowed in workflows; remove it.", file, event.start_mark)
            if nodes > _MOST_NODES:
                raise _broken(f"A workflow may have at most {_MOST_NODES} values.", file, event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_DEPTH:
                raise _broken(f"Values may be nested at most {_MOST_DEPTH} levels deep.", file, event.start_mark)
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """A converter of YAML nodes to JSON values, which records the positions of the nodes."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self.values: dict[Path, Position] = {}
        self.keys: dict[Path, Position] = {}

    def read(self, node: yaml.Node, path: Path) -> Json:
        self.values[path] = _position(node.start_mark)
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.read(item, (*path, position)) for position, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise _broken(
            f"The tag {node.tag} is not allowed in workflows; write plain text, numbers, lists, maps.",
            self._file,
            node.start_mark,
        )

    def _mapping(self, node: yaml.MappingNode, path: Path) -> Json:
        found: dict[str, Json] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                sentence = "A name must be plain text; write name: value, and put text with {{…}} in quotes."
                raise _broken(sentence, self._file, key.start_mark)
            # Read the key as text, because `on`, `no` and `1` are valid names.
            name = self._text(key)
            if name in found:
                raise _broken(f"{name!r} appears twice here; remove one.", self._file, key.start_mark)
            self.keys[(*path, name)] = _position(key.start_mark)
            found[name] = self.read(value, (*path, name))
        return found

    def _text(self, node: yaml.ScalarNode) -> str:
        """Return the text of a scalar. Reject a text with characters that databases cannot store."""
        text = str(node.value)
        if _NO_TEXT.search(text):
            sentence = "This escape is not valid text (NUL, or half of a surrogate pair); remove it."
            raise _broken(sentence, self._file, node.start_mark)
        return text

    def _scalar(self, node: yaml.ScalarNode) -> Json:
        text = self._text(node)
        match node.tag:
            case "tag:yaml.org,2002:null":
                return None
            case "tag:yaml.org,2002:bool" if text.lower() in _TRUTHS:
                return _TRUTHS[text.lower()]
            case "tag:yaml.org,2002:int" if _WHOLE.fullmatch(text):
                return int(text)
            case "tag:yaml.org,2002:float" | "tag:yaml.org,2002:str" if node.style is None and _is_fraction(text):
                return float(text)
            case tag if tag in _PLAIN:
                return text
        raise _broken(f"The tag {node.tag} is not allowed in workflows; write plain text.", self._file, node.start_mark)


def _is_fraction(text: str) -> bool:
    """Return True if a text is a number with a fraction or an exponent that fits into a float."""
    return _FRACTION.fullmatch(text) is not None and isfinite(float(text))


def _broken(sentence: str, file: str | None, mark: Any) -> InvalidWorkflow:
    line, column = (None, None) if mark is None else _position(mark)
    return InvalidWorkflow([WorkflowProblem(sentence, file, line, column)])


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)
