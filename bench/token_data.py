"""Synthetic data for counting tokens: JSON, tables, logs, addresses and base64, the same in every run."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

type Half = Literal["fit", "published"]

_COUNT = 48
_WORDS = {
    "fit": "order parcel station harbour sensor invoice garden window customer report engine ticket river account",
    "published": "booking letter airport kitchen meter receipt forest mirror patient summary concert island owner",
}
_FIELDS = {
    "fit": "id name status createdAt total_price items description is_active latitude tags user_id email",
    "published": "uuid title state updated_at amount entries note enabled longitude labels ownerId phone",
}
_NAMES = {
    "fit": ["Anna Kowalska", "李明", "José García", "Thomas Müller", "Fatima Zahra", "O'Connor"],
    "published": ["Lena Fischer", "王芳", "François Lefèvre", "Marek Novák", "Yuki Tanaka", "Ivan Petrov"],
}
_LEVELS = ["DEBUG", "INFO", "INFO", "INFO", "WARNING", "ERROR"]


class _Maker:
    """A generator of words, names, numbers and times for one half of the samples."""

    def __init__(self, half: Half, kind: str) -> None:
        self.random = random.Random(f"{half} {kind}")
        self.words, self.fields, self.names = _WORDS[half].split(), _FIELDS[half].split(), _NAMES[half]

    def word(self) -> str:
        return self.random.choice(self.words)

    def phrase(self) -> str:
        return " ".join(self.word() for _ in range(self.random.randint(2, 9)))

    def time(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.random.randint(0, 6 * 10**7))

    def number(self) -> int | float:
        if self.random.random() < 0.5:
            return self.random.randint(0, 10 ** self.random.randint(1, 9))
        return round(self.random.uniform(-500, 5_000), self.random.randint(1, 6))

    def uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def identifier(self) -> str:
        return self.random.choice([f"{self.word()}_{self.word()}", f"{self.word()}{self.word().title()}", self.word()])

    def value(self, depth: int = 0) -> object:
        kind = self.random.randint(0, 9 if depth < 2 else 7)
        if kind < 3:
            return self.random.choice([self.word(), self.phrase(), self.random.choice(self.names), self.identifier()])
        if kind < 6:
            return self.number()
        if kind == 6:
            return self.random.choice([True, False, None, self.uuid()])
        if kind == 7:
            return self.time().isoformat()
        if kind == 8:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 4))]
        return self.record(depth + 1)

    def record(self, depth: int = 0) -> dict[str, object]:
        keys = [self.random.choice([*self.fields, self.identifier()]) for _ in range(self.random.randint(2, 7))]
        return {key: self.value(depth) for key in keys}


def _json(half: Half) -> Iterator[str]:
    make = _Maker(half, "json")
    for number in range(_COUNT):
        rows = [make.record() for _ in range(make.random.randint(1, 5))]
        value: object = rows if number % 2 else rows[0]
        style = number % 3
        if style == 0:
            yield json.dumps(value, ensure_ascii=False)
        elif style == 1:
            yield json.dumps(value, ensure_ascii=False, indent=2)
        else:
            yield json.dumps(value, separators=(",", ":"))


def _csv(half: Half) -> Iterator[str]:
    make = _Maker(half, "csv")
    for _ in range(_COUNT):
        mark = make.random.choice([",", ";", "\t"])
        columns = [make.random.choice("twndi") for _ in range(make.random.randint(3, 8))]
        lines = [mark.join(make.random.choice(make.fields) for _ in columns)]
        draw: dict[str, Callable[[], object]] = {
            "t": lambda: make.time().date(),
            "w": make.word,
            "n": make.number,
            "d": lambda: f"{make.random.uniform(0, 9_999):.2f}",
            "i": lambda: make.random.randint(1, 99_999),
        }
        lines += [mark.join(str(draw[column]()) for column in columns) for _ in range(make.random.randint(2, 30))]
        yield "\n".join(lines)


def _numbers(half: Half) -> Iterator[str]:
    make = _Maker(half, "numbers")
    styles: list[Callable[[], str]] = [
        lambda: f"{make.random.randint(0, 10**9):,}",
        lambda: f"{make.random.uniform(-1, 1):.6f}",
        lambda: f"+{make.random.randint(1, 99)} {make.random.randint(100, 999)} {make.random.randint(10**5, 10**7)}",
        lambda: f"{make.time():%d.%m.%Y %H:%M}",
        lambda: str(make.random.randint(0, 99)),
        lambda: f"{make.random.randint(1, 999)}.{make.random.randint(0, 99):02} €",
    ]
    for _ in range(_COUNT):
        style, mark = make.random.choice(styles), make.random.choice([" ", ", ", "\n", "; "])
        yield mark.join(style() for _ in range(make.random.randint(10, 90)))


def _logs(half: Half) -> Iterator[str]:
    make = _Maker(half, "logs")
    for _ in range(_COUNT):
        lines: list[str] = []
        for _ in range(make.random.randint(1, 14)):
            level, module = make.random.choice(_LEVELS), f"{make.word()}.{make.word()}"
            milliseconds = f"{make.random.uniform(0.1, 900):.1f}"
            lines.append(
                f"{make.time():%Y-%m-%dT%H:%M:%S}.{make.random.randint(0, 999):03}Z {level} [{module}] {make.phrase()} "
                f"{make.identifier()}={make.number()} duration_ms={milliseconds} request={make.uuid()[:8]}"
            )
        yield "\n".join(lines)


def _addresses(half: Half) -> Iterator[str]:
    make = _Maker(half, "addresses")
    for _ in range(_COUNT):
        addresses = [_address(make) for _ in range(make.random.randint(1, 12))]
        yield make.random.choice(["\n", " ", ", "]).join(addresses)


def _address(make: _Maker) -> str:
    place = make.random.choice(["www", "api", "docs", "cdn"]), make.word(), make.word()
    host = f"{place[0]}.{place[1]}-{place[2]}.{make.random.choice(['com', 'org', 'de', 'io'])}"
    steps: list[Callable[[], str]] = [
        make.word,
        make.identifier,
        lambda: str(make.random.randint(1, 9999)),
        lambda: f"{make.word()}-{make.word()}-{make.word()}",
    ]
    path = "/".join(make.random.choice(steps)() for _ in range(make.random.randint(1, 4)))
    values: list[Callable[[], str]] = [
        make.word,
        lambda: str(make.random.randint(0, 10**6)),
        make.uuid,
        lambda: make.phrase().replace(" ", "%20"),
    ]
    pairs = [(make.random.choice(make.fields), make.random.choice(values)()) for _ in range(make.random.randint(0, 3))]
    query = "&".join(f"{key}={value}" for key, value in pairs)
    return f"https://{host}/{path}{'?' * bool(query)}{query}"


def _base64(half: Half) -> Iterator[str]:
    make = _Maker(half, "base64")
    for number in range(_COUNT):
        data = make.random.randbytes(make.random.randint(40, 1_100))
        text = (base64.urlsafe_b64encode if number % 4 == 3 else base64.b64encode)(data).decode()
        if number % 4 == 1:
            text = "\n".join(text[start : start + 76] for start in range(0, len(text), 76))
        if number % 4 == 2:
            text = f"data:image/{make.random.choice(['png', 'jpeg', 'webp'])};base64,{text}"
        yield text


def _hexadecimal(half: Half) -> Iterator[str]:
    make = _Maker(half, "hexadecimal")
    styles: list[Callable[[], str]] = [
        make.uuid,
        lambda: make.random.randbytes(32).hex(),
        lambda: make.random.randbytes(20).hex(),
        lambda: make.random.randbytes(6).hex(":").upper(),
    ]
    for number in range(_COUNT):
        style = make.random.choice(styles)
        yield ("\n" if number % 2 else " ").join(style() for _ in range(make.random.randint(2, 20)))


MADE_UP: dict[str, Callable[[Half], Iterator[str]]] = {
    "JSON": _json,
    "CSV": _csv,
    "numbers": _numbers,
    "logs": _logs,
    "web addresses": _addresses,
    "base64": _base64,
    "hashes and UUIDs": _hexadecimal,
}
"""The synthetic rows of the table, and the functions that make the samples of a half."""
