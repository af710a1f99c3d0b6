"""The places that are looked at closely, and what is known of the episodes that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threadkeep.context.recall.hits import Hits
from threadkeep.context.recall.places import Places

# Hits looked at closely, with what is beside them; telling turns if that is little.
_MOST_HITS, _LEAST_PLACES = 72, 320
_BEST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """What the index knows of a query beside its terms: near days by episode, turns to look at, and more if few."""

    dates: Mapping[int, tuple[float, float]]
    certain: Sequence[int]
    telling: Sequence[int]
    everybody: int


def places_of(hits: Hits, match: Match, places: Places) -> list[int]:
    """The places to look at: the best hits with what is beside them, those that are certain, then telling turns."""
    if not hits.masks and not match.certain:
        return []
    best: Sequence[int] = list(hits.masks)
    if len(best) > _MOST_HITS:
        coverage, amount, scale = hits.coverage, hits.scores.get, hits.scale
        values = {place: coverage[bits] + amount(place, 0.0) * scale for place, bits in hits.masks.items()}
        best = sorted(best, key=values.__getitem__, reverse=True)[:_MOST_HITS]
    chosen = set(match.certain)
    for beside in (-2, -1, 0, 1, 2):
        chosen.update(map(beside.__add__, best))
    for place in match.telling:
        if len(chosen) >= _LEAST_PLACES:
            break
        chosen.add(place)
    end, turns = len(places), places.turns
    return [place for place in sorted(chosen) if 0 <= place < end and turns[place] is not None]


def episodes_of(hits: Hits, places: Places) -> dict[int, tuple[float, float]]:
    """Of the episodes with hits, the share of the query that each covers, and how good its best turns are."""
    masks: dict[int, int] = {}
    scores: dict[int, list[float]] = {}
    episodes, amount = places.episodes, hits.scores.get
    for place, mask in hits.masks.items():
        episode = episodes[place]
        masks[episode] = masks.get(episode, 0) | mask
        if found := amount(place):
            scores.setdefault(episode, []).append(found)
    best = {episode: sum(sorted(found, reverse=True)[:_BEST_TURNS]) for episode, found in scores.items()}
    most = max(best.values(), default=0.0) or 1.0
    return {episode: (hits.coverage[mask], best.get(episode, 0.0) / most) for episode, mask in masks.items()}
