"""Write the JSON schema of workflow files from the options of the nodes; a test compares it with the options."""

from __future__ import annotations

import json
from pathlib import Path

from threadkeep.workflows.document import build_schema

if __name__ == "__main__":
    path = Path(__file__).parents[1] / "src/threadkeep/workflows/workflow.schema.json"
    path.write_text(json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path)
