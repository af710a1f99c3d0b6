"""Broad topics of everyday talk: before the bar the words that ask for one, after it those that belong to it."""

from __future__ import annotations

from typing import Final

BROAD_TOPICS: Final = """
activity hobby pastime leisure fun interest recreation exercise sport destress relax outdoor | hike walk run jog swim
    bike cycle camp fish kayak surf ski snowboard skate climb yoga gym workout paint draw sketch sculpt pottery knit
    sew crochet garden cook bake read write journal photography photo guitar piano violin sing dance game chess puzzle
    basketball soccer football tennis baseball volleyball golf boxing karate meditate volunteer craft collect trail
    marathon race beach picnic hunt sail dive boat bowling concert museum class workshop lesson;
outdoor nature outside landscape scenery | hike camp trail park lake river mountain forest wood beach ocean sea island
    waterfall garden tent kayak fish bike sunset sunrise picnic canyon desert valley cliff campfire backpack walk
    climb snow field flower tree;
sport athlete athletic team exercise fitness workout | basketball soccer football tennis baseball volleyball hockey
    golf swim run marathon race gym yoga box kickbox karate ski snowboard surf climb bike cycle skate coach league
    match game score tournament train practice weight lift jog court;
music musician instrument song band concert | guitar piano violin drum clarinet flute saxophone cello trumpet ukulele
    sing album jazz rock pop classical festival gig choir orchestra lyric melody tune playlist dance perform;
art creative craft artist artwork | paint draw sketch sculpt pottery clay canvas watercolor acrylic photo gallery
    exhibit museum knit sew crochet origami design mural portrait collage poem poetry writing novel story screenplay;
book author read novel literature writer | story series fantasy fiction mystery memoir biography poem poetry library
    bookstore chapter literary genre trilogy writing publish;
movie film show series tv watch | cinema episode season documentary trilogy sequel actor actress director thriller
    comedy drama anime theater screenplay script;
game gaming | chess puzzle board card video console controller play strategy quest level tournament computer monopoly
    dice poker;
food eat meal dish cuisine recipe diet cook snack drink ingredient restaurant | breakfast lunch dinner bread cake
    cookie pie pizza pasta noodle rice soup salad sandwich burger taco sushi curry steak chicken beef pork fish shrimp
    salmon egg cheese milk butter chocolate candy sugar ice cream dessert fruit apple banana berry vegetable tomato
    potato carrot spinach avocado oat nut smoothie juice coffee tea soda wine beer spice sauce grill roast bake flavor
    taste delicious yummy cafe kitchen vegan vegetarian lasagna;
health illness disease condition ailment sick medical | doctor hospital clinic nurse surgery medicine medication pill
    therapy diagnose symptom pain ache fever flu cold allergy asthma diabetes cancer heart blood pressure cholesterol
    stroke headache migraine weight diet obese insomnia sleep ill check infection virus cough rash dentist recover
    heal injury;
injury injured hurt accident | ankle knee leg arm wrist back shoulder foot hand bone broke sprain twist fracture tear
    crutch cast wound bleed fall crash surgery hospital doctor therapy recover heal pain sore emergency;
pet animal | dog puppy pup cat kitten kitty rabbit bunny hamster guinea bird parrot fish turtle lizard snake horse
    pony goat chicken shelter adopt breed leash paw fur furry vet tank aquarium;
family relative parent sibling | mother father brother sister son daughter child baby husband wife partner spouse aunt
    uncle cousin nephew niece grandma grandpa grandparent twin toddler kid home reunion;
child kid | son daughter baby toddler boy girl school kindergarten playground toy twin teenager grandchild;
relationship romantic partner date dating love single | boyfriend girlfriend husband wife fiance spouse marry wedding
    divorce engage propose breakup couple anniversary honeymoon crush romance bride groom;
friend social people meet | buddy neighbor colleague coworker teammate classmate roommate pal mate club community
    gathering party hangout;
job work career profession occupation employ business company | boss manager colleague coworker office interview hire
    promotion raise salary startup client project shift intern internship freelance resign quit retire layoff fired
    teacher nurse engineer doctor lawyer counselor designer developer programmer accountant chef artist writer coach
    driver policy store shop;
school education study student degree learn course | college university class major diploma graduate exam grade
    homework teacher professor campus semester scholarship thesis tutor lesson lecture classmate certificate training;
travel trip vacation visit place country city destination location | holiday flight plane airport hotel hostel beach
    island mountain tour cruise train road visa passport luggage suitcase abroad explore tourist museum castle town
    village state roadtrip camping resort sightseeing;
home house live apartment | flat rent mortgage landlord roommate neighbor room kitchen bedroom bathroom garden yard
    garage roof furniture sofa couch lamp decorate renovate move neighborhood lease;
vehicle car transport drive | truck van bus train bike motorcycle scooter subway taxi driver license mechanic engine
    tire repair garage road traffic fuel gas electric commute;
money financial finance price cost budget | dollar pay cheap expensive save saving loan debt bank credit tax salary
    invest stock rent bill afford donate fund fee refund discount coupon;
buy purchase shopping item own bought | order store shop mall online sale pick gift present price deal new brand wear
    shoe dress shirt jacket bag watch;
gift present receive | birthday surprise card necklace ring bracelet flower wrap;
event celebration celebrate attend party festival | wedding birthday anniversary concert conference parade fair
    exhibit show ceremony graduation reunion gala fundraiser race workshop holiday christmas thanksgiving halloween
    easter tournament meetup gathering support;
volunteer charity community help cause | donate shelter homeless fundraiser food bank drive campaign service mentor
    youth veteran nonprofit organization support cleanup;
feel feeling emotion mood | happy sad angry upset excited proud nervous anxious afraid scared worry stress lonely
    grateful thankful joy fear hope relief disappointed frustrated overwhelmed calm peaceful embarrassed surprised
    confident inspired motivated tough hard;
stress relax destress cope calm | anxiety peace meditate yoga walk nature paint music read bath breathe sleep therapy
    unwind;
plan goal dream future hope intend | want wish aim soon next tomorrow upcoming forward someday try start save;
technology tech computer device electronic gadget software | laptop phone tablet camera app website code program
    server screen printer keyboard battery update install internet wifi router tv headphone speaker smartwatch gps bug
    crash data;
weather climate | rain snow sun sunny storm wind cloud hot cold warm temperature heat flood hurricane;
religion faith spiritual church | pray prayer god bible temple mosque worship pastor priest ritual;
politics government political | vote election mayor policy law campaign protest march rights council party military
    veteran;
clothes clothing fashion wear outfit | shirt dress shoe sneaker boot jacket coat hat pants jeans skirt sock scarf suit
    tie style fabric;
personality trait character describe quality | kind caring thoughtful brave strong honest loyal patient creative
    passionate driven determined funny smart shy confident;
achievement accomplish success award win | prize medal trophy champion graduate promote publish finish complete record
    score milestone proud first;
"""
"""Topics, a semicolon after each."""
