"""Words that go together: names of topics with what belongs to them, and words that stand for one another.

Who asks for "hobbies" or "pets" seldom gets a turn that says so, but one that says "guitar" or "puppy".
"""

from __future__ import annotations

from threadkeep.context.recall.stems import stem

# Before the bar the words that ask for a topic, after it the words that belong to it.
_TOPICS = """
activity hobby pastime leisure fun interest recreation exercise sport destress relax outdoor |
    hike walk run jog swim bike cycle camp fish kayak surf ski snowboard skate climb yoga gym workout paint draw
    sketch sculpt pottery knit sew crochet garden cook bake read write journal photography photo guitar piano violin
    sing dance game chess puzzle basketball soccer football tennis baseball volleyball golf boxing karate meditate
    volunteer craft collect trail marathon race beach picnic hunt sail dive boat bowling concert museum class workshop
    lesson

outdoor nature outside landscape scenery |
    hike camp trail park lake river mountain forest wood beach ocean sea island waterfall garden tent kayak fish bike
    sunset sunrise picnic canyon desert valley cliff campfire backpack walk climb snow field flower tree

sport athlete athletic team exercise fitness workout |
    basketball soccer football tennis baseball volleyball hockey golf swim run marathon race gym yoga box kickbox
    karate ski snowboard surf climb bike cycle skate coach league match game score tournament train practice weight
    lift jog court

music musician instrument song band concert |
    guitar piano violin drum clarinet flute saxophone cello trumpet ukulele sing song album band concert jazz rock pop
    classical festival gig choir orchestra lyric melody tune playlist dance perform

art creative craft artist artwork |
    paint draw sketch sculpt pottery clay canvas watercolor acrylic photo gallery exhibit museum knit sew crochet
    origami design mural portrait collage poem poetry writing novel story screenplay

book author read novel literature writer |
    book novel story series fantasy fiction mystery memoir biography poem poetry author library bookstore chapter
    literary genre trilogy read writing publish

movie film show series tv watch |
    movie film cinema series episode season documentary trilogy sequel actor actress director thriller comedy drama
    anime watch theater screenplay script

game gaming |
    chess puzzle board card video console controller play strategy quest level tournament computer monopoly dice poker

food eat meal dish cuisine recipe diet cook snack drink ingredient restaurant |
    breakfast lunch dinner bread cake cookie pie pizza pasta noodle rice soup salad sandwich burger taco sushi
    curry steak chicken beef pork fish shrimp salmon egg cheese milk butter chocolate candy sugar ice cream dessert
    fruit apple banana berry vegetable tomato potato carrot spinach avocado oat nut smoothie juice coffee tea soda
    wine beer spice sauce grill roast bake cook recipe flavor taste delicious yummy restaurant cafe kitchen vegan
    vegetarian lasagna

health illness disease condition ailment sick medical |
    doctor hospital clinic nurse surgery medicine medication pill therapy diagnose symptom pain ache fever flu cold
    allergy asthma diabetes cancer heart blood pressure cholesterol stroke headache migraine weight diet obese
    insomnia sleep ill check infection virus cough rash dentist recover heal injury

injury injured hurt accident |
    ankle knee leg arm wrist back shoulder foot hand bone broke sprain twist fracture tear crutch cast wound bleed
    fall crash surgery hospital doctor therapy recover heal pain sore emergency

pet animal |
    dog puppy pup cat kitten kitty rabbit bunny hamster guinea bird parrot fish turtle lizard snake horse pony goat
    chicken shelter adopt breed leash paw fur furry vet tank aquarium

family relative parent sibling |
    mother father brother sister son daughter child baby husband wife partner spouse aunt uncle cousin nephew niece
    grandma grandpa grandparent twin sibling toddler kid home reunion

child kid |
    son daughter baby toddler boy girl school kindergarten playground toy twin teenager grandchild

relationship romantic partner date dating love single |
    boyfriend girlfriend husband wife fiance spouse marry wedding divorce engage propose breakup single couple
    anniversary honeymoon crush romance bride groom

friend social people meet |
    friend buddy neighbor colleague coworker teammate classmate roommate pal mate club community gathering party
    hangout

job work career profession occupation employ business company |
    job boss manager colleague coworker office interview hire promotion raise salary career company startup business
    client project shift intern internship freelance resign quit retire layoff fired teacher nurse engineer doctor
    lawyer counselor designer developer programmer accountant chef artist writer coach driver policy store shop

school education study student degree learn course |
    school college university class course degree major diploma graduate exam grade homework teacher professor campus
    semester scholarship thesis tutor lesson lecture classmate certificate training study

travel trip vacation visit place country city destination location |
    trip travel vacation holiday flight plane airport hotel hostel beach island mountain tour cruise train road visa
    passport luggage suitcase abroad explore tourist museum castle city country town village state roadtrip camping
    resort sightseeing

home house live apartment |
    house apartment flat rent mortgage landlord roommate neighbor room kitchen bedroom bathroom garden yard garage
    roof furniture sofa couch lamp decorate renovate move neighborhood lease

vehicle car transport drive |
    car truck van bus train bike motorcycle scooter subway taxi drive driver license mechanic engine tire repair
    garage road traffic fuel gas electric commute

money financial finance price cost budget |
    money dollar pay price cost cheap expensive save saving budget loan debt bank credit tax salary invest stock rent
    bill afford donate fund fee refund discount coupon

buy purchase shopping item own bought |
    buy order store shop mall online sale pick purchase gift present price deal new brand wear shoe dress shirt jacket
    bag watch

gift present receive |
    gift present birthday surprise card necklace ring bracelet flower wrap

event celebration celebrate attend party festival |
    party wedding birthday anniversary festival concert conference parade fair exhibit show ceremony graduation
    reunion gala fundraiser race workshop holiday christmas thanksgiving halloween easter tournament meetup gathering
    support

volunteer charity community help cause |
    volunteer charity donate shelter homeless fundraiser food bank drive campaign community service mentor youth
    veteran nonprofit organization support cleanup

feel feeling emotion mood |
    happy sad angry upset excited proud nervous anxious afraid scared worry stress lonely grateful thankful joy fear
    hope relief disappointed frustrated overwhelmed calm peaceful embarrassed surprised confident inspired motivated
    tough hard

stress relax destress cope calm |
    stress anxiety relax calm peace meditate yoga walk nature paint music read bath breathe sleep therapy unwind

plan goal dream future hope intend |
    plan goal dream hope want wish aim soon next tomorrow upcoming forward someday try start save

technology tech computer device electronic gadget software |
    computer laptop phone tablet camera app website code program software server screen printer keyboard battery
    update install internet wifi router tv headphone speaker smartwatch gps bug crash data

weather climate |
    rain snow sun sunny storm wind cloud hot cold warm temperature heat flood hurricane

religion faith spiritual church |
    church pray prayer god bible temple mosque faith worship pastor priest ritual spiritual

politics government political |
    vote election mayor policy law campaign protest march rights government council party military veteran

clothes clothing fashion wear outfit |
    shirt dress shoe sneaker boot jacket coat hat pants jeans skirt sock scarf suit tie wear fashion style fabric
    outfit

personality trait character describe quality |
    kind caring thoughtful brave strong honest loyal patient creative passionate driven determined funny smart shy
    confident

achievement accomplish success award win |
    win award prize medal trophy champion graduate promote publish finish complete record score milestone proud first
"""

_SAME = """
job work career occupation employment profession; buy purchase get got acquire; film movie; trip travel vacation
holiday journey getaway; child kid son daughter; dog puppy pup doggo; cat kitten kitty; baby newborn infant; partner
spouse husband wife girlfriend boyfriend gf bf; friend buddy pal mate; colleague coworker workmate teammate; house
home apartment flat place; car vehicle automobile truck; begin start commence; finish end complete; big large huge;
small little tiny; happy glad excited thrilled joyful; sad upset down unhappy; angry mad furious; afraid scared fear
frighten; worry anxious nervous concern; tired exhausted; sick ill unwell disease illness; doctor physician; hurt
injure injury wound pain; quit resign leave; hire employ recruit; meet encounter met; speak talk chat discuss
conversation; picture photo image pic photograph; story tale; author writer novelist; singer vocalist musician; song
tune track; band group; present gift; party celebration celebrate; marry wedding bride groom; pregnant expect baby;
adopt rescue shelter; volunteer charity nonprofit donate; school college university; class course lesson workshop;
exam test quiz; learn study; teach instruct tutor coach mentor; money cash fund; cheap affordable inexpensive;
expensive pricey costly; shop store mall; food meal dish; dinner supper; recipe cook; healthy health nutritious;
exercise workout gym fitness; run jog marathon race; walk stroll hike; bike bicycle cycle cycling; ocean sea beach
coast shore; forest wood; mountain hill peak mountaineering; park garden; town city; country nation abroad; road
street; plane flight fly; hotel hostel motel resort; phone cell mobile smartphone; computer laptop pc; tv television;
game gaming play; team squad; match game; contest competition tournament; win victory won champion; award prize medal
trophy; art artwork painting; draw sketch; ceramic pottery clay; dance ballet; instrument guitar piano violin;
bookshelf bookcase library; hobby pastime interest activity; favorite favourite prefer love best; enjoy love like
fond; hate dislike; dream goal ambition aspiration aim; plan intend intention; idea suggestion advice recommend tip;
help assist support aid; problem issue trouble difficulty challenge; reason cause motivate motivation inspire
inspiration; decide choose choice pick; change transition; important significant vital; beautiful gorgeous pretty
stunning; funny hilarious humor; scary creepy; calm peaceful serene tranquil relax; stress pressure tension; luck
lucky fortunate; danger dangerous risk; safe secure; error bug fault defect; fix repair mend; broken broke damage;
lose lost missing; find found discover; hide conceal; receive get got; give donate gave; send mail ship deliver; build
construct make create; destroy ruin demolish; move relocate; arrive reach; return back; visit tour; stay remain; live
reside; die death dead pass; grandparent grandmother grandfather grandma grandpa; parent mother father mom dad;
sibling brother sister; lawyer attorney; police cop officer; boss manager supervisor; salary wage income pay; company
firm business; customer client; clothes clothing outfit; glasses spectacles; couch sofa; trash garbage rubbish;
bathroom toilet restroom; soda pop; candy sweet; cookie biscuit; veggie vegetable; autumn fall; mug cup; shoe sneaker;
bag backpack purse; necklace pendant; snack treat; beverage drink
"""


def _tables() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """What a stem asks for, and what a stem counts as."""
    asks: dict[str, set[str]] = {}
    counts: dict[str, set[str]] = {}
    for number, block in enumerate(_TOPICS.strip().split("\n\n")):
        heads, members = block.split("|")
        topic = f"#{number}"
        for head in heads.split():
            asks.setdefault(stem(head), set()).add(topic)
        for member in (*members.split(), *heads.split()):
            counts.setdefault(stem(member), set()).add(topic)
    for number, group in enumerate(_SAME.split(";")):
        for word in group.split():
            asks.setdefault(stem(word), set()).add(f"={number}")
            counts.setdefault(stem(word), set()).add(f"={number}")
    return ({k: tuple(sorted(v)) for k, v in asks.items()}, {k: tuple(sorted(v)) for k, v in counts.items()})


ASKS, COUNTS = _tables()
"""Stem of a query's word -> the topics it asks for; stem of a turn's word -> the topics it belongs to."""
