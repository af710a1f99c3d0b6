"""Tests of counting tokens of messages in all providers' formats."""

from __future__ import annotations

import base64
import copy
import sys
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from pypdf import PdfWriter

from threadkeep.agent.counting import LOW_DETAIL_TOKENS, MEDIA_TOKENS, PDF_PAGE_TOKENS, count_tokens
from threadkeep.context.tokens import counter_for, estimate
from threadkeep.records import Message

DATA = "QUJD" * 5_000
ADDRESS = f"data:image/png;base64,{DATA}"

MEDIA: dict[str, dict[str, Any]] = {
    "chat completions image": {"type": "image_url", "image_url": {"url": ADDRESS}},
    "image as one address": {"type": "image_url", "image_url": ADDRESS},
    "responses image": {"type": "input_image", "image_url": ADDRESS},
    "anthropic image": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    "standard image": {"type": "image", "base64": DATA, "mime_type": "image/png"},
    "image by address": {"type": "image", "url": "https://example.com/cat.png"},
    "chat completions audio": {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    "standard audio": {"type": "audio", "base64": DATA, "mime_type": "audio/wav"},
    "standard video": {"type": "video", "base64": DATA, "mime_type": "video/mp4"},
    "chat completions file": {"type": "file", "file": {"filename": "a.pdf", "file_data": ADDRESS}},
    "anthropic document": {"type": "document", "source": {"type": "base64", "data": DATA}},
    "google media": {"type": "media", "mime_type": "image/png", "data": DATA},
}


def pdf(pages: int) -> str:
    """Return a PDF of empty pages in base64."""
    writer = PdfWriter()
    for _ in range(pages):
        writer.add_blank_page(width=100, height=100)
    file = BytesIO()
    writer.write(file)
    return base64.b64encode(file.getvalue()).decode()


PDFS: dict[str, dict[str, Any]] = {
    "chat completions file": {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{pdf(3)}"}},
    "responses file": {"type": "input_file", "file_data": f"data:application/pdf;name=a.pdf;base64,{pdf(3)}"},
    "anthropic document": {"type": "document", "source": {"type": "base64", "data": pdf(3)}},
    "standard file": {"type": "file", "base64": pdf(3), "mime_type": "application/pdf"},
    "google media": {"type": "media", "mime_type": "application/pdf", "data": base64.b64decode(pdf(3))},
    "a broken file": {"type": "file", "base64": pdf(3)[:200], "mime_type": "application/pdf"},
    "broken base64": {"type": "file", "base64": pdf(3)[:201] + "ä", "mime_type": "application/pdf"},
}


@pytest.mark.parametrize("block", MEDIA.values(), ids=MEDIA)
def test_media_have_a_fixed_figure(block: dict[str, Any]) -> None:
    assert count_tokens(HumanMessage([{"type": "text", "text": "look"}, block]), counter=len) == 4 + MEDIA_TOKENS


@pytest.mark.parametrize("block", MEDIA.values(), ids=MEDIA)
def test_media_in_a_tools_result_have_the_same_figure(block: dict[str, Any]) -> None:
    assert count_tokens(ToolMessage([block], tool_call_id="1"), counter=len) == MEDIA_TOKENS
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "here"}, block]}
    assert count_tokens(HumanMessage([result]), counter=len) == 4 + MEDIA_TOKENS


@pytest.mark.parametrize("shape", [name for name in PDFS if "broken" not in name])
def test_a_pdf_counts_by_its_pages(shape: str) -> None:
    assert count_tokens(HumanMessage([PDFS[shape]]), counter=len) == 3 * PDF_PAGE_TOKENS


def test_a_pdf_that_cannot_be_read_counts_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a broken file", "broken base64"):
        assert count_tokens(HumanMessage([PDFS[name]]), counter=len) == MEDIA_TOKENS
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert count_tokens(HumanMessage([PDFS["standard file"]]), counter=len) == MEDIA_TOKENS


def test_an_image_of_low_detail_counts_less() -> None:
    nested: dict[str, Any] = {"type": "image_url", "image_url": {"url": ADDRESS, "detail": "low"}}
    flat: dict[str, Any] = {"type": "input_image", "image_url": ADDRESS, "detail": "low"}
    assert [count_tokens(HumanMessage([block]), counter=len) for block in (nested, flat)] == [LOW_DETAIL_TOKENS] * 2


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "input_text", "text": "hello"}, "hello"),
        ({"type": "output_text", "text": "hello", "annotations": []}, "hello"),
        ({"type": "text-plain", "text": "hello", "mime_type": "text/plain"}, "hello"),
        ({"type": "thinking", "thinking": "hello", "signature": "c2ln" * 100}, "hello"),
        ({"type": "reasoning", "reasoning": "hello"}, "hello"),
        ({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hello"}]}, "hello"),
        ({"type": "refusal", "refusal": "hello"}, "hello"),
        ({"type": "tool_result", "tool_use_id": "1", "content": "hello"}, "hello"),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}}, "hello"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "hi"}]}}, "hi"),
        ({"text": "hello"}, '{"text": "hello"}'),
        ({"type": "hologram", "data": "hello"}, '{"type": "hologram", "data": "hello"}'),
    ],
)
def test_text_in_any_block_is_counted_as_text(block: dict[str, Any], text: str) -> None:
    """A known block counts its text only; an unknown block counts as JSON."""
    assert count_tokens(HumanMessage([block]), counter=len) == len(text)


def test_nested_base64_in_an_unknown_block_is_not_text() -> None:
    """Nested binary data of an unknown block has a fixed count: usual keys, data URLs, bytes and long base64."""
    block: dict[str, Any] = {
        "image": {"format": "png", "source": {"bytes": b"\x89PNG" * 100}},
        "parts": [{"data": DATA}, {"link": ADDRESS}, {"anything": DATA}],
    }
    text = '{"image": {"format": "png", "source": {}}, "parts": [{}, {}, {}]}'
    assert count_tokens(HumanMessage([block]), counter=len) == len(text) + 4 * MEDIA_TOKENS


def test_encrypted_reasoning_counts_by_its_length() -> None:
    """Encrypted reasoning is counted by its length, because the provider charges for it."""
    encrypted = AIMessage([{"type": "reasoning", "summary": [], "encrypted_content": "x" * 600}])
    redacted = AIMessage([{"type": "redacted_thinking", "data": "x" * 600}])
    assert count_tokens(encrypted, counter=len) == count_tokens(redacted, counter=len) == 100


def test_a_call_in_the_content_counts_once() -> None:
    call: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": '{"x": 1}'}
    known = AIMessage([call], tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1"}])
    assert count_tokens(known, counter=len) == len('f{"x": 1}')
    other = AIMessage([{**call, "call_id": "2"}], tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1"}])
    assert count_tokens(other, counter=len) > 2 * len('f{"x": 1}')


def test_an_invalid_tool_call_is_counted() -> None:
    message = AIMessage("", invalid_tool_calls=[{"name": "f", "args": '{"x": ', "id": "1", "error": "no JSON"}])
    assert count_tokens(message, counter=len) == len('f{"x": ')


def test_the_model_chooses_the_counter() -> None:
    chinese = "退款需要多长时间？订单还没有到。"
    for model in ("gpt-4", "openai:gpt-4o", "claude-sonnet-5", None):
        assert count_tokens([HumanMessage(chinese)], model=model) == counter_for(model)(chinese)
    assert count_tokens(chinese, model="gpt-4") > count_tokens(chinese, model="gpt-4o")
    assert count_tokens(chinese, model="gpt-4", counter=len) == len(chinese)
    assert count_tokens(Message(role="user", content=chinese)) == estimate(chinese)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
_KINDS = ["text", "thinking", "reasoning", "image_url", "tool_result", "document", "tool_use", "content", "x"]
_FIELDS = ["text", "thinking", "reasoning", "summary", "content", "source", "data", "image_url", "id", "signature"]
_BLOCKS = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(_KINDS),
    st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=4),
)


@given(st.lists(_BLOCKS | st.text(max_size=20), max_size=4))
@pytest.mark.slow
def test_any_blocks_can_be_counted(blocks: list[str | dict[str, Any]]) -> None:
    before = copy.deepcopy(blocks)
    for kind in (HumanMessage, AIMessage, SystemMessage):
        message = kind(blocks)
        tokens = count_tokens(message)
        assert tokens >= 0
        assert count_tokens(message) == tokens
    assert blocks == before
