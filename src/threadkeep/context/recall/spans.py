"""Days mentioned in a text: dates, months, years, and words such as "yesterday" and "last week"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from threadkeep.context.recall.words import lines_of

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sep sept", "october oct", "november nov", "december dec",
        ), 1,
    )
    for name in names.split()
}  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COUNTS = (
    "a an one 一, two couple 两 二, three few 三, four several 四, five 五, six 六, seven 七, eight 八, nine 九, ten 十"
)
_NUMBERS = {word: number for number, words in enumerate(_COUNTS.split(","), 1) for word in words.split()}
_SEASONS = {"spring": (3, 5), "summer": (6, 8), "autumn": (9, 11), "fall": (9, 11), "winter": (12, 14)}
_UNIT_DAYS = {
    "day": 1,
    "week": 7,
    "weekend": 7,
    "month": 30,
    "year": 365,
    "天": 1,
    "周": 7,
    "星期": 7,
    "月": 30,
    "年": 365,
}

_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_COUNT = r"\d{1,3}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True))
_ISO = re.compile(r"\b(\d{4})[-/](\d{1,2})[-/](\d{1,2})\b")
_DAY_MONTH = re.compile(rf"\b(\d{{1,2}})(?:st|[nr]d|th)?(?: of)? ({_MONTH})\b\.?,?(?: (\d{{4}})\b)?", re.IGNORECASE)
_MONTH_DAY = re.compile(rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|[nr]d|th)?\b,?(?: (\d{{4}})\b)?", re.IGNORECASE)
_MONTH_ONLY = re.compile(rf"\b({_MONTH})\b(?:,? (?:of )?(\d{{4}})\b)?", re.IGNORECASE)
_YEAR = re.compile(r"\b((?:19|20)\d\d)\b")
_AGO = re.compile(rf"\b({_COUNT})(?: of)? (day|week|weekend|month|year)s? (?:ago|before|earlier|back)\b", re.IGNORECASE)
_LAST = re.compile(r"\b(last|past|previous|this|next) (week|weekend|month|year|night)\b", re.IGNORECASE)
_SEASON = re.compile(
    rf"\b(?:(last|this|next|in|the|of) )?({'|'.join(_SEASONS)})\b(?: (?:of )?(\d{{4}}))?", re.IGNORECASE
)
_WEEKDAY = re.compile(rf"\b(?:(last|this|next|on) )?({'|'.join(_WEEKDAYS)})\b", re.IGNORECASE)
_NEAR_DAY = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|this morning|this afternoon|this evening)\b", re.IGNORECASE
)
_HAN_DATE = re.compile(r"(?:(\d{4})年)?(\d{1,2})月(?:(\d{1,2})[日号])?")
_HAN_YEAR = re.compile(r"(\d{4})年(?!\d{1,2}月)")
_HAN_AGO = re.compile(rf"({_COUNT})个?(天|周|星期|月|年)(?:以?前)")
_HAN_NEAR = re.compile(
    "大前天|前天|昨天|昨晚|今天|今早|今晚|明天|上个?周末|上个?周|上个?星期|这个?周|上个?月|这个?月|前年|去年|今年"
)
_HAN_NEAR_DAYS: dict[str, tuple[int, int]] = {
    "大前天": (-3, -3), "前天": (-2, -2), "昨天": (-1, -1), "昨晚": (-1, -1), "今天": (0, 0),
    "今早": (0, 0), "今晚": (0, 0), "明天": (1, 1), "周末": (-8, -1), "周": (-10, -3),
    "星期": (-10, -3), "月": (-45, -15), "前年": (-800, -500), "去年": (-500, -180),
    "今年": (-300, 0), "这周": (-6, 0), "这月": (-30, 0),
}  # fmt: skip


def _read_words() -> dict[str, dict[str, int]]:
    """Return the date words of other languages: for each kind, such as `day`, a map from words to numbers."""
    kinds: dict[str, dict[str, int]] = {}
    for line in lines_of("dates.txt"):
        name, words = line.split(":")
        kind, number = name.split()
        kinds.setdefault(kind, {}).update(dict.fromkeys((word.strip() for word in words.split(",")), int(number)))
    return kinds


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_WORDS = _read_words()
_RELATIVE_DAYS = {
    word: (which, length)
    for kind, length in (("day", 1), ("week", 7), ("month", 30), ("year", 365))
    for word, which in _WORDS[kind].items()
}
# The end of a word. In Japanese and Korean, no space follows it. Turkish adds endings after an apostrophe.
_END = r"(?:['’]\w{1,5})?(?!\w)|(?<=[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af])"
_OTHER_MONTH = _any_of(_WORDS["name"])
_OTHER_COUNT = rf"\d{{1,3}}|{_any_of(_WORDS['number'])}"
_OTHER_UNIT = _any_of(_WORDS["unit"])
_OTHER_DAY_MONTH = re.compile(
    rf"(?<!\w)(\d{{1,2}})(?:\.|er|º|°)?(?: de| di)? ({_OTHER_MONTH})(?:{_END})(?:(?: de| del)? (\d{{4}})\b)?",
)
_OTHER_MONTH_ONLY = re.compile(
    rf"(?<!\w)(?:im|en|in|em|w|в|у|في) ({_OTHER_MONTH})(?:{_END})(?:(?: de| del)? (\d{{4}})\b)?"
    rf"|(?<!\w)({_OTHER_MONTH})(?:{_END})(?: de| del)? (\d{{4}})\b",
)
_OTHER_WEEKDAY = re.compile(rf"(?<!\w)({_any_of(_WORDS['weekday'])})(?:{_END})")
_OTHER_NEAR = re.compile(rf"(?<!\w)({_any_of(_RELATIVE_DAYS)})(?:{_END})")
_OTHER_AGO = re.compile(
    rf"(?<!\w)(?:{_any_of(_WORDS['before'])}) ({_OTHER_COUNT}) ?({_OTHER_UNIT})(?!\w)"
    rf"|(?<!\w)({_OTHER_COUNT}) ?({_OTHER_UNIT}) ?(?:{_any_of(_WORDS['after'])})(?:{_END})",
)
_KOREAN_DATE = re.compile(r"(?:(\d{4})년 ?)?(\d{1,2})월(?: ?(\d{1,2})일)?")
# A text without any of these words mentions no day; most texts have none of them.
_HINT = re.compile(
    rf"\d|[天周期月年昨今明]|\b(?:{_MONTH}|{'|'.join((*_SEASONS, *_WEEKDAYS))}|days?|week|month|year|night"
    r"|today|tonight|tomorrow|yesterday|this)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[\s\d.,;:!?()\"'’]+")
_OTHER_HINTS = {
    _BETWEEN.split(word)[-1]
    for kind in ("name", "weekday", "day", "week", "month", "year", "unit")
    for word in _WORDS[kind]
} - {"an"}
_UNSPACED_HINT = re.compile(_any_of(word for word in _OTHER_HINTS if word[0] >= "\u3040") + "|월|전")


# Patterns that ignore case also match these letters for i, s and k; the tables have only the ASCII letters.
_DOTTED = {ord("İ"): "i"}
_LIKE_ASCII = _DOTTED | {ord("ı"): "i", ord("ſ"): "s", ord("\u212a"): "K"}


@dataclass(frozen=True, slots=True)
class Span:
    """The days from `first` to `last`, as ordinals of the calendar (`date.toordinal`)."""

    first: int
    last: int


type _Reading = tuple[re.Pattern[str], Callable[[re.Match[str], Span, int], Iterator[Span]]]


def spans_of(text: str, known: Span, now: int) -> list[Span]:
    """Return the ranges of days that a text mentions. An ambiguous date gives several ranges.

    Args:
        text: The text to scan.
        known: The range from the first to the last day with turns. A date without a year gets a range in each of the
            last five years of this range.
        now: The day of the text, for words such as "yesterday".
    """
    spans: list[Span] = []
    lowered = text.translate(_DOTTED).lower()
    if not _OTHER_HINTS.isdisjoint(_BETWEEN.split(lowered)) or _UNSPACED_HINT.search(lowered):
        lowered = _read(_OTHER_READINGS, lowered, known, now, spans)
    left = (lowered if spans else text).translate(_LIKE_ASCII)
    if _HINT.search(left):
        _read(_READINGS, left, known, now, spans)
    return spans


def _read(readings: Sequence[_Reading], text: str, known: Span, now: int, spans: list[Span]) -> str:
    """Add the days in a text to `spans`; return the text without the words that mention them."""
    for pattern, reading in readings:
        for found in pattern.finditer(text):
            spans.extend(reading(found, known, now))
        text = pattern.sub(" ", text)
    return text


def _iso(found: re.Match[str], _known: Span, _now: int) -> Iterator[Span]:
    yield from _day(int(found[1]), int(found[2]), int(found[3]))


def _day_month(found: re.Match[str], known: Span, _now: int) -> Iterator[Span]:
    for year in _years(found[3], known):
        yield from _day(year, _MONTHS[found[2].lower()], int(found[1]))


def _month_day(found: re.Match[str], known: Span, _now: int) -> Iterator[Span]:
    for year in _years(found[3], known):
        yield from _day(year, _MONTHS[found[1].lower()], int(found[2]))


def _month_only(found: re.Match[str], known: Span, _now: int) -> Iterator[Span]:
    name = found[1]
    # "may", "march" and short names are months only if they are capitalised.
    if name[0].islower() and (len(name) <= 3 or name in {"may", "march"}):
        return
    if name == "May" and found[2] is None and found.start() == 0:
        return
    for year in _years(found[2], known):
        yield from _months(year, _MONTHS[name.lower()], _MONTHS[name.lower()])


def _year(found: re.Match[str], _known: Span, _now: int) -> Iterator[Span]:
    yield from _months(int(found[1]), 1, 12)


def _ago(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    word, unit = found[1].lower(), _UNIT_DAYS[found[2].lower()]
    count = _NUMBERS[word] if word in _NUMBERS else int(word)
    yield Span(now - count * unit - unit // 2, now - count * unit + unit // 2)


def _relative(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    which, unit = found[1].lower(), found[2].lower()
    if unit == "night":
        yield Span(now - 1, now - (which != "last" and which != "past"))
        return
    yield _around({"this": 0, "next": 1}.get(which, -1), _UNIT_DAYS[unit], now)


def _around(which: int, length: int, now: int) -> Span:
    """Return the last (-1), this (0) or the next (1) period of `length` days, with a margin."""
    if which == 0:
        return Span(now - length, now)
    return Span(now, now + 2 * length) if which > 0 else Span(now - length - length // 2, now - length // 3)


def _season(found: re.Match[str], known: Span, now: int) -> Iterator[Span]:
    if found[1] is None and found[3] is None and found[2][0].islower():
        return
    first, last = _SEASONS[found[2].lower()]
    spans = [span for year in _years(found[3], known) for span in _months(year, first, last)]
    if (found[1] or "").lower() == "last":
        spans = [span for span in spans if span.last < now][-1:]
    yield from spans


def _weekday(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    back = (date.fromordinal(now).weekday() - _WEEKDAYS.index(found[2].lower())) % 7
    if (found[1] or "").lower() != "next":
        yield Span(now - (back or 7), now - (back or 7))


def _near_day(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    shift = {"yesterday": -1, "tomorrow": 1}.get(found[1].lower(), 0)
    yield Span(now + shift, now + shift)


def _han_date(found: re.Match[str], known: Span, _now: int) -> Iterator[Span]:
    for year in _years(found[1], known):
        if found[3]:
            yield from _day(year, int(found[2]), int(found[3]))
        else:
            yield from _months(year, int(found[2]), int(found[2]))


def _han_near(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    word = found[0].replace("个", "").removeprefix("上")
    first, last = _HAN_NEAR_DAYS.get(word) or _HAN_NEAR_DAYS["这周"]
    yield Span(now + first, now + last)


def _other_day_month(found: re.Match[str], known: Span, _now: int) -> Iterator[Span]:
    for year in _years(found[3], known):
        yield from _day(year, _WORDS["name"][found[2].lower()], int(found[1]))


def _other_month_only(found: re.Match[str], known: Span, _now: int) -> Iterator[Span]:
    month = _WORDS["name"][(found[1] or found[3]).lower()]
    for year in _years(found[2] or found[4], known):
        yield from _months(year, month, month)


def _other_weekday(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    back = (date.fromordinal(now).isoweekday() - _WORDS["weekday"][found[1].lower()]) % 7
    yield Span(now - (back or 7), now - (back or 7))


def _other_near(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    which, length = _RELATIVE_DAYS[found[1].lower()]
    if length == 1:
        yield Span(now + which, now + which)
    else:
        yield _around(which, length, now)


def _other_ago(found: re.Match[str], _known: Span, now: int) -> Iterator[Span]:
    word, unit = (found[1] or found[3]).lower(), _WORDS["unit"][(found[2] or found[4]).lower()]
    count = _WORDS["number"][word] if word in _WORDS["number"] else int(word)
    yield Span(now - count * unit - unit // 2, now - count * unit + unit // 2)


_OTHER_READINGS = (
    (_OTHER_DAY_MONTH, _other_day_month), (_KOREAN_DATE, _han_date), (_OTHER_MONTH_ONLY, _other_month_only),
    (_OTHER_AGO, _other_ago), (_OTHER_NEAR, _other_near), (_OTHER_WEEKDAY, _other_weekday),
)  # fmt: skip
_READINGS = (
    (_ISO, _iso), (_DAY_MONTH, _day_month), (_MONTH_DAY, _month_day), (_HAN_DATE, _han_date), (_HAN_YEAR, _year),
    (_SEASON, _season), (_MONTH_ONLY, _month_only), (_YEAR, _year), (_AGO, _ago), (_LAST, _relative),
    (_WEEKDAY, _weekday), (_NEAR_DAY, _near_day), (_HAN_AGO, _ago), (_HAN_NEAR, _han_near),
)  # fmt: skip


def _years(year: str | None, known: Span) -> list[int]:
    if year:
        return [int(year)]
    first, last = date.fromordinal(known.first).year, date.fromordinal(known.last).year
    return list(range(max(first, last - 4), last + 1))


def _day(year: int, month: int, day: int) -> Iterator[Span]:
    try:
        ordinal = date(year, month, day).toordinal()
    except ValueError:
        return
    yield Span(ordinal, ordinal)


def _months(year: int, first: int, last: int) -> Iterator[Span]:
    """Yield the days of the months from `first` to `last`. Month 13 is January of the next year."""
    if not (1 <= first <= 14 and 1 <= year < 9999):
        return
    begin = date(year + (first - 1) // 12, (first - 1) % 12 + 1, 1)
    end = date(year + last // 12, last % 12 + 1, 1) - timedelta(days=1)
    yield Span(begin.toordinal(), end.toordinal())
