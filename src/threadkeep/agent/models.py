"""Creates the chat model that a setting names, and changes how LangSmith starts its tracing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, cast

import langsmith
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langsmith.utils import tracing_is_enabled

from threadkeep.agent.demo import DemoModel
from threadkeep.errors import InvalidSettings


def make_model(name: str, *, variable: str = "THREADKEEP_MODEL") -> BaseChatModel:
    """Return the chat model with the given name: `demo`, or a name that LangChain's `init_chat_model` accepts.

    Args:
        name: the model's name.
        variable: the setting that contains the name; errors mention it.

    Raises:
        InvalidSettings: the provider's package or key is missing, or the name is unknown.
    """
    if name == "demo":
        return DemoModel()
    try:
        return _reporting(init_chat_model(name))
    except ImportError as error:
        raise InvalidSettings(
            f"{variable}={name} needs a package that is not installed: {error}", variable=variable
        ) from error
    # Providers raise errors of their own types. Show only the type, because some messages quote the key.
    except Exception as error:
        raise InvalidSettings(
            f"{variable}={name} cannot be used ({type(error).__name__}): check the name (openai:gpt-5-mini, "
            "ollama:qwen3) and that the provider's key is in the environment (OPENAI_API_KEY, …).",
            variable=variable,
        ) from error


def _reporting(model: BaseChatModel) -> BaseChatModel:
    """Make a model report token counts in streams. By default, LangChain does this only for OpenAI's own address."""
    if getattr(model, "stream_usage", True) is None:
        cast("Any", model).stream_usage = True
    return model


def trace_without_threads() -> None:
    """Make LangSmith set up its runs on the event loop instead of in OS threads while tracing is off.

    By default, LangSmith uses OS threads twice per model call. The setting applies to all agents of a process, so only
    Threadkeep's own processes use it.
    """
    langsmith.set_runtime_overrides(aio_to_thread=_in_loop)


async def _in_loop(
    in_thread: Callable[..., Awaitable[Any]],
    context: Context,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if tracing_is_enabled():
        return await in_thread(context, function, *args, **kwargs)
    return context.run(function, *args, **kwargs)
