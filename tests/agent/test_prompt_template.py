"""Tests of prompts as one flat text: complete, and without effect of placeholders in messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from threadkeep import InvalidInput, PromptTemplate, flatten_messages

HELLO: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("Hi"),
    AIMessage("Hello"),
    HumanMessage("How are you?"),
]


def test_messages_are_flattened_with_their_roles() -> None:
    assert flatten_messages(HELLO) == "(system) Be brief.\n\n(user) Hi\n\n(assistant) Hello\n\n(user) How are you?"
    assert flatten_messages([]) == ""


def test_every_kind_of_message_has_a_role() -> None:
    """Chat messages and tool results have roles; of blocks, the text is used."""
    messages = [
        ChatMessage(content="Be brief.", role="developer"),
        HumanMessage([{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]),
        ToolMessage("4711", tool_call_id="c1"),
        ChatMessage(content="Meow", role="cat"),
    ]
    assert flatten_messages(messages) == "(system) Be brief.\n\n(user) What is this?\n\n(tool) 4711\n\n(cat) Meow"


def test_each_placeholder_is_filled() -> None:
    template = PromptTemplate("{{system}}\n[{{ summary }}|{{context}}]\n{{history}}\n---\n{{input}}\n{ } {{input}}\n")
    assert template.render(HELLO, summary="They met.", context="Berlin") == (
        "Be brief.\n[They met.|Berlin]\n(user) Hi\n\n(assistant) Hello\n---\nHow are you?\n{ } How are you?\n"
    )


def test_without_a_placeholder_system_messages_are_in_the_history() -> None:
    text = PromptTemplate("{{history}}\n\n{{input}}").render(HELLO)
    assert text == "(system) Be brief.\n\n(user) Hi\n\n(assistant) Hello\n\nHow are you?"


def test_messages_after_the_question_follow_it() -> None:
    messages = [*HELLO, AIMessage("Let me see."), ToolMessage("fine", tool_call_id="c1")]
    text = PromptTemplate("{{history}} / {{input}}").render(messages[1:])
    assert text == "(user) Hi\n\n(assistant) Hello / How are you?\n\n(assistant) Let me see.\n\n(tool) fine"


def test_without_a_question_the_input_is_empty() -> None:
    assert PromptTemplate("{{history}}|{{input}}").render([AIMessage("Hello")]) == "(assistant) Hello|"
    assert PromptTemplate("{{history}}|{{input}}").render([]) == "|"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Answer {{input}}", r"no \{\{history\}\}, so earlier messages would be left out without a word: add it"),
        ("{{history}} {input}", r"no \{\{input\}\}, so the new message would not reach the model: add it"),
        ("", r"no \{\{history\}\}"),
        ("{{history}} {{input}} {{user.name}}", r"has \{\{user.name\}\}, and there is no such value: placeholders are"),
        ("{{history}} {{input}} {{}}", r"has \{\{\}\}"),
    ],
)
def test_a_template_with_missing_or_unknown_placeholders_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        PromptTemplate(text)


@pytest.mark.parametrize("name", ["summary", "context"])
def test_values_without_a_placeholder_are_refused(name: str) -> None:
    template = PromptTemplate("{{history}} {{input}}")
    with pytest.raises(InvalidInput, match=rf"no \{{\{{{name}\}}\}}"):
        template.render(HELLO, **{name: "canary"})
    assert template.render(HELLO, **{name: ""})


pieces = st.sampled_from(["a", "{", "}", " ", "\\", "\n", "{{input}}", "{{history}}", "{{ system }}", "\\1", "中"])
words = st.lists(pieces, max_size=8).map("".join)
literals = st.text("ab \n()<>中", max_size=10)


@given(
    said=st.lists(st.tuples(st.sampled_from([HumanMessage, AIMessage]), words), max_size=5),
    question=words,
    system=words,
    around=st.tuples(literals, literals, literals, literals),
)
def test_placeholders_in_messages_are_not_filled(
    said: list[tuple[type[BaseMessage], str]], question: str, system: str, around: tuple[str, str, str, str]
) -> None:
    history = [kind(content=text) for kind, text in said]
    a, b, c, d = around
    template = PromptTemplate(f"{a}{{{{system}}}}{b}{{{{history}}}}{c}{{{{input}}}}{d}")
    text = template.render([SystemMessage(system), *history, HumanMessage(question)])
    assert text == f"{a}{system}{b}{flatten_messages(history)}{c}{question}{d}"
