"""Import strings in options: `package.module:name`."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

from pydantic import Field

from threadkeep.errors import InvalidInput
from threadkeep.records import Json

_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

type Reference = Annotated[
    str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)
]
"""The import string of a Python object, such as `shop.tools:find_order`."""

IMPORTING_FIELDS = ("tools", "retriever")
"""The fields of nodes whose texts are import strings."""


def references_in(definition: Json) -> frozenset[str]:
    """Return the import strings in the definition of a workflow."""
    found: set[str] = set()
    if isinstance(definition, list):
        found.update(*map(references_in, definition))
    if isinstance(definition, dict):
        for name, value in definition.items():
            if name in IMPORTING_FIELDS:
                found.update(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))
            found |= references_in(value)
    return frozenset(found)


def import_named(reference: str) -> object:
    """Return the object that an import string names.

    Raises:
        InvalidInput: the string is malformed, or the module or name does not exist; the sentence says which.
    """
    if not _REFERENCE.fullmatch(reference):
        raise InvalidInput(f"{reference!r} is no import string; write package.module:name.")
    module_name, _, path = reference.partition(":")
    try:
        thing: object = import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{reference!r} cannot be imported: there is no module {error.name!r}. "
            "Install its package, run where it lies, or put its folder into PYTHONPATH."
        ) from error
    # Also SystemExit: a script that ends its process is not a usable module.
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"{reference!r} cannot be imported: its module raised {type(error).__name__}; import it to see why."
        ) from error
    for name in path.split("."):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            raise InvalidInput(f"{reference!r} cannot be imported: there is no {name!r}; correct the name.") from None
    return thing


def made_by(make: Callable[[], object], reference: str) -> object:
    """Call a function that an import string names and return its result.

    Raises:
        InvalidInput: the function raised; the sentence names the kind of the error.
    """
    try:
        return make()
    except Exception as error:
        raise InvalidInput(
            f"{reference!r} raised {type(error).__name__} when it was called without arguments; call it to see why."
        ) from error
