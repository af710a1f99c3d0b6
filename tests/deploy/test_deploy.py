"""Tests of the files for Docker and systemd, with the tools of the machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.limits import HANG_SECONDS
from threadkeep.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
ROOT = DEPLOY.parent
FILES = ("Dockerfile", "compose.yaml", "threadkeep.service")


@pytest.mark.parametrize("name", FILES)
def test_every_setting_of_the_files_exists(name: str) -> None:
    """A misspelled variable would have no effect."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    there = {f"THREADKEEP_{field.upper()}" for field in Settings.model_fields}
    named = set(re.findall(r"THREADKEEP_\w+", text))
    assert named
    assert named <= there


def test_compose_has_all_parts_and_their_volumes() -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"service", "worker-1", "worker-2", "database", "prometheus"}
    mounted = {volume.partition(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert {name for name in mounted if not name.startswith(".")} == set(compose["volumes"])
    assert (DEPLOY / "prometheus.yml").exists()
    targets = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    [scrape] = targets["scrape_configs"]
    assert scrape["static_configs"][0]["targets"][0].partition(":")[0] in services


def test_docker_waits_until_running_turns_have_ended() -> None:
    """Without a time in the file, Docker kills a container ten seconds after its signal to stop."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name in ("service", "worker-1", "worker-2"):
        seconds = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert seconds > 2 * Settings.model_fields["shutdown_timeout"].default


def test_the_files_of_the_image_exist() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    sources = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert sources
    assert all((ROOT / source).exists() for source in sources)


def test_hadolint_accepts_the_image() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("There is no hadolint for this kind of machine.")
    command = [program, str(DEPLOY / "Dockerfile")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The program of the unit is replaced by one that exists on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("There is no systemd-analyze here.")
    unit = (DEPLOY / "threadkeep.service").read_text(encoding="utf-8")
    here = tmp_path / "threadkeep.service"
    here.write_text(unit.replace("/opt/threadkeep/bin/threadkeep", sys.executable), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(here)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert (run.returncode, [line for line in run.stderr.splitlines() if "threadkeep" in line]) == (0, [])
