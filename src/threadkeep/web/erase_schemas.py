"""The schema of an erase receipt."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from threadkeep.records.erasure import ErasedKind, EraseReceipt


class ErasedStoreView(BaseModel):
    """The rows, items or turns of one store."""

    name: str
    before: int
    after: int = Field(description="Read back after the erase.")


class EraseView(BaseModel):
    """The receipt of an erase: no text and no id of the person."""

    kind: ErasedKind
    subject: str = Field(description="A keyed digest of the id.")
    begun_at: datetime
    ended_at: datetime
    dry_run: bool
    complete: bool = Field(description="Nothing was read back from any store.")
    sessions: int = Field(description="Sessions that were deleted whole.")
    shared_sessions: int = Field(description="Sessions of others with messages of the person.")
    shared_messages: int = Field(description="Messages there that became empty rows.")
    stores: list[ErasedStoreView]
    not_reached: list[str] = Field(description="Copies that remain, such as backups.")
    signature: str

    @classmethod
    def of(cls, receipt: EraseReceipt) -> EraseView:
        """Return the view of a receipt."""
        return cls.model_validate({**receipt.to_dict(), "complete": receipt.complete})
