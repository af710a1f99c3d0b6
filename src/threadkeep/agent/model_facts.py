"""Facts about a model that determine the budget of a call: its name, context window and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.utils.function_calling import convert_to_openai_tool

from threadkeep.context.budget import DEFAULT_WINDOW, known_window

_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class ModelFacts:
    """The name of a model and of its provider (None if unknown), and its context window in tokens.

    `known` is False if the window is a default: neither the model, its name nor the caller gives it.
    """

    name: str | None
    window: int
    provider: str | None = None
    known: bool = True


def facts_of(model: BaseChatModel | None, override: int | None = None) -> ModelFacts:
    """Return the facts of a model; its window is the override, else its profile's, else that of its name."""
    name = name_of_model(model)
    profile = getattr(model, "profile", None)
    told = profile.get("max_input_tokens") if isinstance(profile, Mapping) else None
    window = known_window(name, override if override is not None else told)
    return ModelFacts(name, window or DEFAULT_WINDOW, _provider_of(model), known=window is not None)


def name_of_model(model: BaseChatModel | None) -> str | None:
    """Return the name that a LangChain chat model gives its provider, in a form that can be stored."""
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name:
            return kept_name(name)
    return None


def _provider_of(model: BaseChatModel | None) -> str | None:
    """Return the provider that a model reports to tracers."""
    told = model._get_ls_params() if model is not None else {}  # noqa: SLF001 - LangChain has no other way to ask
    provider = told.get("ls_provider")
    return provider if isinstance(provider, str) else None


def kept_name(name: str) -> str:
    """Return a model's name as a table key: printable and short."""
    return (name if name.isprintable() else ascii(name))[:_MOST_CHARACTERS]


def tools_text(tools: Sequence[object]) -> str:
    """Return the tools as the JSON that a provider gets; it counts as input."""
    return f"[{', '.join(map(_tool_text, tools))}]" if tools else ""


def _tool_text(tool: object) -> str:
    try:
        told = convert_to_openai_tool(cast("dict[str, Any]", tool))
    except (ValueError, TypeError):
        told = cast("dict[str, Any]", tool)  # a provider's own kind of tool, which LangChain passes on unchanged
    return json.dumps(told, ensure_ascii=False, default=str)
