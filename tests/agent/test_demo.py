"""Tests of the demo model: it quotes the user's statements in its call and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from threadkeep.agent.demo import DemoModel
from threadkeep.context.tokens import estimate


@tool
def weather(city: str) -> str:
    """Say the weather of a city."""
    return f"rain in {city}"


async def conversation(*said: str) -> tuple[str, ...]:
    """Return the model's answers to the user's texts, sent one after the other."""
    messages: list[BaseMessage] = []
    for text in said:
        messages.append(HumanMessage(text))
        messages.append(await DemoModel().ainvoke(messages))
    return tuple(str(message.text) for message in messages[1::2])


@pytest.mark.parametrize(
    ("told", "asked", "expected"),
    [
        ("My favourite colour is teal", "What is my favourite colour?", "teal"),
        ("My favourite color is teal.", "what's my favourite colour", "teal"),
        ("I have two cats, Tom and Kit.", "How many cats do I have?", "Tom and Kit"),
        ("I lived in Rome for years", "Where did I live?", "Rome"),
        ("My order number is 4711", "Tell me my order number", "4711"),
        ("When I was young, I rode horses", "Do you remember what I rode?", "horses"),
        ("My e-mail is li.wei@example.org", "Hey, what is my e-mail?", "li.wei@example.org"),
        ("My doctor is Dr. Smith", "Who is my doctor?", "Dr. Smith"),
        ("我叫小明", "我叫什么名字？", "小明"),
        ("我住在上海。我喜欢猫。", "我住在哪里", "上海"),
        ("我最喜歡的顏色是青色", "我最喜歡的顏色是什麼", "青色"),
        ("Ich heiße Jürgen", "Wie heiße ich", "Jürgen"),
        ("Meine Katze heißt Minka", "Weißt du, wie meine Katzen heißen?", "Minka"),
        ("私の名前は太郎です", "私の名前は何ですか", "太郎"),
        ("제 이름은 민수예요", "제 이름이 뭐예요?", "민수"),
        ("Je m'appelle Zoé", "Comment je m'appelle ?", "Zoé"),
        ("Me llamo Inés y vivo en Lugo", "¿Dónde vivo?", "Lugo"),
        ("Меня зовут Анна", "как меня зовут", "Анна"),
    ],
)
async def test_the_statement_that_shares_words_with_the_question_is_quoted(
    told: str, asked: str, expected: str
) -> None:
    *_, answer = await conversation("The weather is bad today", told, "Paul plays guitar. 今天下雨了。", asked)
    assert expected in answer
    assert "weather" not in answer
    assert "guitar" not in answer


async def test_a_statement_is_quoted_word_for_word() -> None:
    _, answer = await conversation("My cat's name is MÖHRCHEN-7 (really)!", "What is the name of my cat?")
    assert answer == "You told me: “My cat's name is MÖHRCHEN-7 (really)!” I see 3 messages."


async def test_equally_good_statements_are_quoted_in_their_order() -> None:
    """Statements that match equally well are quoted in order, so that a correction is last."""
    *_, answer = await conversation("My desk is red", "My desk is blue", "My desk is red", "What colour is my desk?")
    assert answer.startswith("You told me: “My desk is blue”, “My desk is red”.")


async def test_a_question_without_a_match_gets_the_latest_statements() -> None:
    *_, answer = await conversation("One fish", "Two birds", "Three dogs", "Four cats", "Who am I?")
    assert "nothing about that" in answer
    assert "“Two birds”, “Three dogs”, “Four cats”" in answer
    assert "One fish" not in answer


@pytest.mark.parametrize("opening", ["What is my name?", "hello", "Do I like tea?"])
async def test_greetings_and_questions_are_no_statements(opening: str) -> None:
    *_, answer = await conversation(opening, "What is my name?")
    assert answer == "You have not told me anything yet. I see 3 messages."


async def test_statements_are_acknowledged() -> None:
    assert await conversation("hello!", "I like tea.", "ok") == (
        "Hello. I see 1 message.",
        "Noted. I see 3 messages.",
        "All right. I see 5 messages.",
    )


@pytest.mark.parametrize(
    "statement",
    [
        "What a nice idea!",
        "When I was young I had a dog",
        "Will Smith is my friend",
        "我没什么问题",
        "很多消息都没看",
        "저는 학교에 가요",
        "See http://example.org/?a=b for it",
    ],
)
async def test_a_statement_is_not_taken_for_a_question(statement: str) -> None:
    assert await conversation(statement) == ("Noted. I see 1 message.",)


async def test_a_statement_before_the_question_in_one_message_is_quoted() -> None:
    (answer,) = await conversation("My dog is Rex. I am Bob. Who is my dog?")
    assert answer == "You told me: “My dog is Rex.” I see 1 message."


def test_only_the_users_statements_are_quoted() -> None:
    messages = [
        SystemMessage("The secret word is apple."),
        HumanMessage("Is the secret word cherry?"),
        AIMessage("The secret word is banana.", tool_calls=[{"name": "word", "args": {}, "id": "1"}]),
        ToolMessage("The secret word is damson.", tool_call_id="1"),
        HumanMessage("I like words."),
        AIMessage("Noted."),
        HumanMessage("What is the secret word?"),
    ]
    answer = str(DemoModel().invoke(messages).text)
    assert answer == "You told me: “I like words.” I see 6 messages."


@pytest.mark.parametrize(
    "asked",
    [
        "How many messages do you see?",
        "How many of my messages can you see",
        "你看到多少条消息？",
        "你能看到几条消息",
        "Wie viele Nachrichten siehst du?",
        "Combien de messages vois-tu ?",
        "メッセージはいくつ見えますか",
        "Сколько сообщений ты видишь?",
    ],
)
async def test_a_question_about_the_number_of_messages_gets_the_number(asked: str) -> None:
    *_, answer = await conversation("I like tea", asked)
    assert answer == "I see 3 messages."


def test_the_model_knows_nothing_of_previous_calls() -> None:
    model = DemoModel()
    model.invoke("My name is Li.")
    assert str(model.invoke("What is my name?").text) == "You have not told me anything yet. I see 1 message."
    assert str(model.invoke([SystemMessage("x")]).text) == "You have not told me anything yet. I see 0 messages."


async def test_the_chunks_add_up_to_the_answer() -> None:
    messages: list[BaseMessage] = [
        SystemMessage("Be kind."),
        HumanMessage("My name is Li"),
        HumanMessage("What is my name?"),
    ]
    whole = await DemoModel().ainvoke(messages)
    chunks = [chunk async for chunk in DemoModel().astream(messages)]
    assert len(chunks) > 8
    total = AIMessageChunk(content="")
    for chunk in chunks:
        total += chunk
    assert (total.content, total.usage_metadata) == (whole.content, whole.usage_metadata)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == estimate(str(whole.text))
    assert whole.usage_metadata["input_tokens"] == sum(estimate(str(message.text)) for message in messages)
    assert "".join(str(chunk.content) for chunk in DemoModel().stream(messages)) == whole.content


async def test_the_model_works_in_an_agent_with_tools() -> None:
    agent: Any = create_agent(DemoModel(), [weather], system_prompt="My favourite colour is grey.")
    told = [
        HumanMessage("My favourite colour is teal"),
        AIMessage("Noted."),
        HumanMessage("What is my favourite colour?"),
    ]
    state = await agent.ainvoke({"messages": told})
    assert state["messages"][-1].text == "You told me: “My favourite colour is teal”. I see 3 messages."
    assert len(state["messages"]) == 4
    words = [str(chunk.text) async for chunk, _ in agent.astream({"messages": told}, stream_mode="messages")]
    assert len([word for word in words if word]) > 8
    assert "".join(words) == state["messages"][-1].text


def test_long_statements_are_quoted_in_part() -> None:
    answer = str(DemoModel().invoke([HumanMessage("tea " * 5000), HumanMessage("What about tea?")]).text)
    assert len(answer) < 500


@given(st.lists(st.text(st.characters()), min_size=1, max_size=4))
def test_any_text_gets_an_answer(texts: list[str]) -> None:
    """Any text is answered deterministically, with the number of messages."""
    messages = [HumanMessage(text) for text in texts]
    answer = str(DemoModel().invoke(messages).text)
    assert answer.endswith(f"I see {len(texts)} message{'' if len(texts) == 1 else 's'}.")
    assert answer == str(DemoModel().invoke(messages).text)
