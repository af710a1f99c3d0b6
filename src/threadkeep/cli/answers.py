"""How the answers of a chat are shown: as they come to a person, as plain text, or as one JSON object a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rich.status import Status
from rich.text import Text

from threadkeep.cli.problems import Problem
from threadkeep.cli.terminal import Terminal, harmless

if TYPE_CHECKING:
    from threadkeep.runs.chat.turns import ChatAnswer


class Answers(Protocol):
    """Is told of each turn: its beginning, its pieces, and how it ended."""

    def begin(self) -> None:
        """The model was asked."""
        ...

    def piece(self, text: str) -> None:
        """A piece of the answer came."""
        ...

    def end(self, answer: ChatAnswer) -> None:
        """The answer is complete."""
        ...

    def fail(self, problem: Problem) -> None:
        """There is no answer, or only a part of it."""
        ...


class PlainAnswers:
    """Text as it comes, an answer a paragraph; problems on stderr."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._said = False

    def begin(self) -> None:
        """The model was asked."""
        self._said = False

    def piece(self, text: str) -> None:
        """Show a piece at once."""
        self._said = True
        self._terminal.out.print(harmless(text), end="", markup=False, highlight=False, soft_wrap=True)
        self._terminal.out.file.flush()

    def end(self, answer: ChatAnswer) -> None:
        """Show what did not come in pieces."""
        if not self._said:
            self.piece(answer.response)
        self._terminal.say()

    def fail(self, problem: Problem) -> None:
        """Say why there is no more."""
        if self._said:
            self._terminal.say()
        self._terminal.error(problem.sentence)


class LiveAnswers(PlainAnswers):
    """The same for a person at a terminal: with a spinner while the model is silent."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._spinner: Status | None = None

    def begin(self) -> None:
        """Begin to spin."""
        super().begin()
        self._spinner = self._terminal.out.status("thinking", spinner="dots")
        self._spinner.start()

    def piece(self, text: str) -> None:
        """Show a piece; the first one ends the spinner."""
        if not self._said:
            self._stop()
            self._terminal.out.print(Text.assemble(("assistant ", "bold green"), "› "), end="")
        super().piece(text)

    def end(self, answer: ChatAnswer) -> None:
        """Show what did not come in pieces, and leave a line."""
        self._stop()
        super().end(answer)
        self._terminal.say()

    def fail(self, problem: Problem) -> None:
        """Say why there is no more."""
        self._stop()
        super().fail(problem)

    def _stop(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


class JsonAnswers:
    """One JSON object a turn on stdout: the answer, or the problem in its place."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def begin(self) -> None:
        """Nothing to say yet."""

    def piece(self, text: str) -> None:
        """The answer is told as a whole."""

    def end(self, answer: ChatAnswer) -> None:
        """Tell the answer."""
        self._terminal.json(answer.to_dict())

    def fail(self, problem: Problem) -> None:
        """Tell the problem."""
        self._terminal.json(problem.to_dict())
