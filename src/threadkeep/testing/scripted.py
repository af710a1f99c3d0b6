"""A chat model with scripted replies that records its calls."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from threadkeep.agent.demo import OfflineModel

type Piece = str | AIMessage | BaseException | Gate
type Said = Piece | Sequence[Piece]
type Reply = Said | Callable[[Sequence[BaseMessage]], Said | Awaitable[Said]]


class Gate:
    """A point inside a reply at which the model waits until the test opens it."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def reached(self) -> None:
        """Wait until the model has reached the gate."""
        await self._reached.wait()

    def open(self) -> None:
        """Open the gate: the model continues, now and whenever it reaches the gate again."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Report that the gate was reached, and wait until it is open."""
        self._reached.set()
        await self._opened.wait()


class ScriptEnded(AssertionError):
    """A call of a `ScriptedModel` after the last reply of its script."""


class ScriptedModel(OfflineModel):
    """A LangChain chat model that returns the given replies in order; in a stream, word by word.

    A reply is a text, an `AIMessage`, an error to raise, a `Gate` to wait at (in async calls only), or a sequence of
    these (`["a few ", gate, "words"]`). It can also be a function, async or not, that takes the messages of the call
    and returns any of these. The sequence of replies may be endless (`itertools.repeat("ok")`).

    `calls` has copies of the messages of each call, and `tools` the names of the tools that it offered. If a reply has
    no usage of its own, the words of the messages and of the reply are reported as its tokens.
    """

    _replies: Iterator[Reply] = PrivateAttr()
    _calls: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _tools: list[tuple[str, ...]] = PrivateAttr(default_factory=list)

    def __init__(self, replies: Iterable[Reply] = (), *, disable_streaming: bool = False) -> None:
        super().__init__(disable_streaming=disable_streaming)
        self._replies = iter(replies)

    @property
    def calls(self) -> list[list[BaseMessage]]:
        """The messages of each call so far."""
        return self._calls

    @property
    def tools(self) -> list[tuple[str, ...]]:
        """The names of the tools that each call so far offered."""
        return self._tools

    @property
    def _llm_type(self) -> str:
        return "threadkeep-scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> ChatResult:
        return _result(messages, list(self._said_now(messages, kwargs)))

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> ChatResult:
        return _result(messages, [piece async for piece in self._said(messages, kwargs)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        said: list[str | AIMessage] = []
        for piece in self._said_now(messages, kwargs):
            said.append(piece)
            yield from _chunks(piece)
        yield _last_chunk(messages, said)

    async def _astream(self, messages: list[BaseMessage], *_: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        said: list[str | AIMessage] = []
        async for piece in self._said(messages, kwargs):
            said.append(piece)
            for chunk in _chunks(piece):
                yield chunk
        yield _last_chunk(messages, said)

    def _next(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Said | Awaitable[Said]:
        """Record the call and return its reply. Nothing is awaited, so no concurrent call takes the same reply."""
        copies = [message.model_copy(deep=True) for message in messages]
        self._calls.append(copies)
        self._tools.append(tuple([tool["function"]["name"] for tool in options.get("tools") or ()]))
        try:
            reply = next(self._replies)
        except StopIteration:
            raise ScriptEnded(f"Call {len(self._calls)} has no reply; add one to the ScriptedModel.") from None
        return reply(copies) if callable(reply) else reply

    async def _said(
        self, messages: Sequence[BaseMessage], options: Mapping[str, Any]
    ) -> AsyncIterator[str | AIMessage]:
        """Yield the pieces of the next reply, but wait at its gates and raise its errors."""
        said = self._next(messages, options)
        for piece in _pieces(await said if inspect.isawaitable(said) else said):
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, Gate):
                await piece.pass_through()
            else:
                yield piece

    def _said_now(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Iterator[str | AIMessage]:
        """Yield the pieces of the next reply as `_said` does, for a blocking call, which cannot wait."""
        said = self._next(messages, options)
        if inspect.iscoroutine(said):
            said.close()
        if inspect.isawaitable(said):
            raise TypeError("This reply comes from an async function; call the model with ainvoke or astream.")
        for piece in _pieces(said):
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, Gate):
                raise TypeError("A gate needs an async call; use ainvoke or astream.")
            yield piece


def _pieces(said: Said) -> Sequence[Piece]:
    return (said,) if isinstance(said, str | AIMessage | BaseException | Gate) else said


def _result(messages: Sequence[BaseMessage], said: Sequence[str | AIMessage]) -> ChatResult:
    if len(said) == 1 and isinstance(said[0], AIMessage):
        message = said[0].model_copy(deep=True)
    else:
        calls = [call for piece in said if isinstance(piece, AIMessage) for call in piece.tool_calls]
        text = "".join([piece if isinstance(piece, str) else str(piece.text) for piece in said])
        message = AIMessage(content=text, tool_calls=calls)
    message.usage_metadata = _usage(messages, said)
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunks(piece: str | AIMessage) -> Iterator[ChatGenerationChunk]:
    """Yield a piece as a provider would stream it: the text word by word, then the rest."""
    content = piece if isinstance(piece, str) else piece.content
    given_id = None if isinstance(piece, str) else piece.id
    if isinstance(content, str):
        for word in re.findall(r"\s*\S+|\s+", content):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word, id=given_id))
    if isinstance(piece, AIMessage):
        calls = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
            for index, call in enumerate(piece.tool_calls)
        ]
        rest = AIMessageChunk(
            content="" if isinstance(content, str) else content,
            id=given_id,
            tool_call_chunks=calls,
            additional_kwargs=piece.additional_kwargs,
            response_metadata=piece.response_metadata,
        )
        yield ChatGenerationChunk(message=rest)


def _last_chunk(messages: Sequence[BaseMessage], said: Sequence[str | AIMessage]) -> ChatGenerationChunk:
    usage = _usage(messages, said)
    return ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage, chunk_position="last"))


def _usage(messages: Sequence[BaseMessage], said: Sequence[str | AIMessage]) -> UsageMetadata:
    given = [piece.usage_metadata for piece in said if isinstance(piece, AIMessage) and piece.usage_metadata]
    if given:
        return given[-1]
    words_in = sum([len(str(message.text).split()) for message in messages])
    words_out = sum([len((piece if isinstance(piece, str) else str(piece.text)).split()) for piece in said])
    return UsageMetadata(input_tokens=words_in, output_tokens=words_out, total_tokens=words_in + words_out)
