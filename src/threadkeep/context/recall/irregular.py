"""Irregular forms of English words, each with the form that stands for it."""

from __future__ import annotations

_FORMS = """
arise arose arisen; awake awoke awoken; bear bore borne; beat beaten; become became; begin began begun; bend bent; bet
betting; bind bound; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred; bring brought;
build built; burn burnt; buy bought; catch caught; choose chose chosen; cling clung; come came; creep crept; deal
dealt; dig dug; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate eaten; fall fell fallen;
feed fed; feel felt; fight fought; find found; flee fled; fly flew flown flies; forget forgot forgotten; forgive
forgave forgiven; freeze froze frozen; give gave given; go went gone goes; grow grew grown; hang hung; hear heard;
hide hid hidden; hold held; keep kept; kneel knelt; know knew known; lay laid; lead led; leap leapt; learn learnt;
leave left; lend lent; lose lost; make made; mean meant; meet met; pay paid; ride rode ridden; ring rang rung; rise
rose risen; run ran; say said; see saw seen; seek sought; sell sold; send sent; sew sewn; shake shook shaken; shine
shone; shoot shot; show shown; shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid;
speak spoke spoken; spend spent; spin spun; spring sprang sprung; stand stood; steal stole stolen; stick stuck; strike
struck; swear swore sworn; sweep swept; swim swam swum; swing swung; take took taken; teach taught; tear tore torn;
tell told; think thought; throw threw thrown; understand understood; wake woke woken; wear wore worn; weave wove
woven; weep wept; win won; wind wound; write wrote written writing; child children; man men; woman women; person
people; mouse mice; foot feet; tooth teeth; goose geese; life lives; wife wives; knife knives; leaf leaves; shelf
shelves; half halves; wolf wolves; self selves; loaf loaves; thief thieves; good better best; bad worse worst; far
farther further; die died dying; lie lied lying; tie tied tying; have has had; do does did done; be is are was were
been being am; travel travelled travelling traveller; marry married marriage; photo photograph photography
photographer photographic; run running runner; big bigger biggest; choice chosen; advice advise; believe belief; birth
born; death dead died; lend loan; live living; strong strength; long length; wide width; high height; deep depth;
weigh weight; sell sale; grow growth; speak speech; sing song singer; lose loss; think thought; fly flight; proof
prove; succeed success successful; decide decision; analyze analysis; describe description; explain explanation;
receive reception; mom mum mother mama mommy mummy; dad father papa daddy; grandma grandmother granny; grandpa
grandfather granddad; kid kiddo; bike bicycle; phone telephone cellphone; fridge refrigerator; exam examination; ad
advert advertisement; doctor doc dr; vet veterinarian; veggie vegetable;
"""


def _base_forms() -> dict[str, str]:
    forms: dict[str, str] = {}
    for group in _FORMS.split(";"):
        base, *others = group.split() or [""]
        for other in others:
            forms.setdefault(other, base)
    return forms


BASE_FORMS = _base_forms()
"""Each irregular form in small letters, and what it is a form of."""
