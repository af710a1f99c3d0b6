"""What options name by an import string: `package.module:name`."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

from pydantic import Field

from threadkeep.errors import InvalidInput

_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

type Reference = Annotated[
    str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)
]
"""The place of a Python object, such as `shop.tools:find_order`."""


def import_named(reference: str) -> object:
    """The object that an import string names.

    Raises:
        InvalidInput: it is no import string, or there is no such module or name; the sentence says which.
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
    # SystemExit, too: a script that ends its process is no module.
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
    """What a function gives that an import string names.

    Raises:
        InvalidInput: it raised something; the sentence says which kind.
    """
    try:
        return make()
    except Exception as error:
        raise InvalidInput(
            f"{reference!r} raised {type(error).__name__} when it was called without arguments; call it to see why."
        ) from error
