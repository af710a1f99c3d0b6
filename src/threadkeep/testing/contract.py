"""The contract of transcripts as tests for any implementation of `Transcripts`."""

from __future__ import annotations

import pytest

# Without this, a failed assertion of these modules does not show its values, because they are not in a test file.
for name in ("append", "reading", "session", "superseding"):
    pytest.register_assert_rewrite(f"threadkeep.testing.{name}_guarantees")

from threadkeep.testing.append_guarantees import AppendGuarantees  # noqa: E402
from threadkeep.testing.reading_guarantees import ReadingGuarantees  # noqa: E402
from threadkeep.testing.session_guarantees import SessionGuarantees  # noqa: E402
from threadkeep.testing.superseding_guarantees import SupersedingGuarantees  # noqa: E402


class TranscriptContract(AppendGuarantees, ReadingGuarantees, SessionGuarantees, SupersedingGuarantees):
    """All guarantees of `threadkeep.store.transcripts.Transcripts`, each as an async test.

    Subclass this class in a test file and open the transcripts there. pytest then collects the tests with anyio's
    plugin or with pytest-asyncio in auto mode; in its strict mode, mark the class with `pytest.mark.asyncio`::

        class TestMyTranscripts(TranscriptContract):
            @asynccontextmanager
            async def open_transcripts(self) -> AsyncIterator[Transcripts]:
                async with connect("…") as transcripts:
                    yield transcripts

    Each test opens its own transcripts, which must be empty.
    """
