"""The contract of transcripts as tests, which any implementation of `Transcripts` can be put through."""

from __future__ import annotations

from threadkeep.testing.append_laws import AppendLaws
from threadkeep.testing.reading_laws import ReadingLaws
from threadkeep.testing.session_laws import SessionLaws


class TranscriptContract(AppendLaws, ReadingLaws, SessionLaws):
    """All laws of `threadkeep.store.transcripts.Transcripts`, each an async test.

    Take the class in a test file and say where the transcripts come from; pytest does the rest (with pytest-asyncio in
    auto mode or anyio's plugin; in strict mode mark the class with `pytest.mark.asyncio`)::

        class TestMyTranscripts(TranscriptContract):
            @asynccontextmanager
            async def open_transcripts(self) -> AsyncIterator[Transcripts]:
                async with connect("…") as transcripts:
                    yield transcripts

    Each law opens a place of its own, which has to be empty.
    """
