"""Words and characters that are everywhere and tell no turn from another."""

from __future__ import annotations

from typing import Final

_WORDS = """
a about above actually after again against all almost also although always am an and any anyone anything are aren't as
at be because been before being below between both but by can can't cannot could couldn't did didn't do does doesn't
doing don't done down during each either else etc even ever every everything few for from further gonna got gotta had
hadn't has hasn't have haven't having he he'd he'll he's hello her here here's hers herself hey hi him himself his how
how's however i i'd i'll i'm i've if in into is isn't it it'd it'll it's its itself just kind kinda know let let's
like lot lots made make many may maybe me mean might mine more most much must my myself need never no nor not now of
off oh ok okay on once one only onto or other others our ours ourselves out over own per perhaps please pretty quite
rather really said same say says shall she she'd she'll she's should shouldn't since so some someone something sort
still such sure than thank thanks that that'll that's the their theirs them themselves then there there's these they
they'd they'll they're they've thing things this those though through thus to too type under until up upon us very via
was wasn't way we we'd we'll we're we've well were weren't what what's whatever when when's where where's whether
which while who who's whom whose why why's will with within without won't would wouldn't wow yeah yep yes yet you
you'd you'll you're you've your yours yourself yourselves haha lol btw mention mentioned according tell told talk
talked talking remember recall
"""

STOP_WORDS: Final = frozenset(_WORDS.split())
"""English words in small letters."""

STOP_CHARACTERS: Final = frozenset(
    "的了吗呢吧啊呀嘛是在有和与及或就都也还很我你您他她它们这那哪什么么怎谁不没会要能可以个把被"
    "给跟对说着过到去来上下はがをにのとでもへやかねよ을를이가은는도"
)
"""Chinese characters, and endings in Japanese and Korean."""
