"""The receipt of an erasure: counts of rows, items or turns by store, but no texts and no ids of persons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from threadkeep.records.json_values import DESCRIBED, dump_json

type ErasedKind = Literal["user", "session"]


@dataclass(frozen=True)
class ErasedStore:
    """The number of rows, items or turns to erase in one store, before and after the erasure."""

    __pydantic_config__ = DESCRIBED

    name: str
    before: int
    after: int
    """The count that was read again after the erasure."""


@dataclass(frozen=True)
class EraseReceipt:
    """The result of an erasure.

    Digests are made with a key of the database. `subject` is the digest of the erased id; for a person, `ids` has the
    digests of all ids. `signature` is the digest of all other fields. `stores` has the stores in which data were found.
    The person's messages in other users' sessions were emptied, not deleted: `shared_messages` is their number, and
    `shared_sessions` the number of these sessions. `not_reached` describes remaining copies, such as backups.
    """

    kind: ErasedKind
    subject: str
    begun_at: datetime
    ended_at: datetime
    dry_run: bool
    sessions: int
    shared_sessions: int
    shared_messages: int
    stores: tuple[ErasedStore, ...]
    not_reached: tuple[str, ...] = ()
    signature: str = ""
    ids: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if the erasure was not a dry run and no store has data left."""
        return not self.dry_run and not any(store.after for store in self.stores)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        times = {"begun_at": self.begun_at.isoformat(), "ended_at": self.ended_at.isoformat()}
        stores = [asdict(store) for store in self.stores]
        lists = {"stores": stores, "not_reached": list(self.not_reached), "ids": list(self.ids)}
        return {**asdict(self), **times, **lists}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EraseReceipt:
        """Return the receipt from the values of `to_dict`. Raise `KeyError`, `TypeError` or `ValueError` if invalid."""
        return cls(
            **{
                **values,
                "begun_at": datetime.fromisoformat(values["begun_at"]),
                "ended_at": datetime.fromisoformat(values["ended_at"]),
                "stores": tuple(ErasedStore(**store) for store in values["stores"]),
                "not_reached": tuple(values["not_reached"]),
                "ids": tuple(values.get("ids", ())),
            }
        )

    def signed_text(self) -> str:
        """Return the text that the signature covers."""
        values = {**self.to_dict(), "signature": ""}
        if not self.ids:
            del values["ids"]  # receipts of earlier versions do not have this field
        return dump_json(values)
