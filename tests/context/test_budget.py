"""Tests of context windows by model name, and of input budgets."""

from __future__ import annotations

import pytest

from threadkeep.context.tokens import DEFAULT_WINDOW, WINDOWS, context_window, input_budget
from threadkeep.errors import BudgetTooSmall


@pytest.mark.parametrize(
    ("window", "budget"),
    [(8_192, 5_632), (16_384, 11_776), (32_000, 23_488), (128_000, 111_104), (200_000, 183_104), (4_000, 2_488)],
)
def test_the_budget_is_the_window_less_reserve_and_safety(window: int, budget: int) -> None:
    """The reserve is a quarter of the window, at most 16,384 tokens; 512 are for safety."""
    assert input_budget("unknown", context_window=window) == budget


def test_a_given_reply_size_is_the_reserve() -> None:
    assert input_budget(None, max_output_tokens=2_000, context_window=4_000) == 1_488
    assert input_budget("gpt-4-0613") == 5_632


@pytest.mark.parametrize(("window", "reply"), [(4_000, 4_000), (4_000, 3_488), (500, None)])
def test_a_window_without_room_raises_an_error_with_the_numbers(window: int, reply: int | None) -> None:
    reserve = reply or window // 4
    with pytest.raises(
        BudgetTooSmall, match=rf"window of {window} tokens, less {reserve} .* and 512 .* lower max_output"
    ):
        input_budget("gpt-4o", max_output_tokens=reply, context_window=window)


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4-0613", 8_192),
        ("gpt-4o-2024-08-06", 128_000),
        ("gpt-4.1", 1_047_576),
        ("gpt-4.1-mini-2025-04-14", 1_047_576),
        ("gpt-4-turbo-2024-04-09", 128_000),
        ("claude-3-5-sonnet-20241022", 200_000),
        ("anthropic/claude-3-5-sonnet-20241022", 200_000),
        ("openrouter/anthropic/claude-3.5-sonnet", 200_000),
        ("ANTHROPIC:Claude-3-5-Sonnet-20241022", 200_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("openai:gpt-5-mini", 400_000),
        ("google_genai:gemini-2.5-flash", 1_048_576),
        ("ollama:llama3.1:8b", 131_072),
        ("llama3:8b", 8_192),
        ("Qwen/Qwen3-32B", 131_072),
        ("deepseek-chat", 128_000),
        ("mistral-large-2411", 131_072),
        ("gpt-4.9-imagined", 128_000),
        ("o1x", 128_000),
        ("demo", 128_000),
        (" ", 128_000),
        ("", 128_000),
        (None, 128_000),
    ],
)
def test_a_window_is_found_by_exact_name_then_longest_prefix(model: str | None, window: int) -> None:
    """The provider and the case are ignored; an unknown model has 128,000 tokens."""
    assert context_window(model) == window


def test_an_override_always_wins() -> None:
    assert context_window("gpt-4", 32_000) == 32_000


@pytest.mark.parametrize("override", [None, 0, -5, "32000", "many", float("nan"), float("inf"), True, [1]])
def test_an_override_that_is_no_positive_number_is_ignored(override: object) -> None:
    assert context_window("gpt-4", override) == 8_192


def test_the_table_is_in_lower_case_and_the_default_is_128_000() -> None:
    assert all(name == name.lower() for name in WINDOWS)
    assert DEFAULT_WINDOW == 128_000
