"""Narrow topics within the broad ones: kinds of sport, dish, place, work, and what else people name by its kind."""

from __future__ import annotations

from typing import Final

NARROW_TOPICS: Final = """
martial art combat self-defense | karate judo taekwondo kickboxing boxing jiujitsu aikido kungfu wrestling mma dojo
    belt sparring fencing muay;
water aquatic | swim surf kayak canoe paddle raft snorkel scuba dive sail boat yacht ferry pool lake river sea ocean
    beach wave dock fish;
winter snow ice | ski snowboard sled skate snowman blizzard frost icicle glove mitten scarf snowshoe cold;
team ball | basketball soccer football baseball volleyball hockey rugby cricket softball lacrosse handball league
    coach court pitch goal score season playoff championship nba nfl mvp jersey stadium dunk rebound quarterback;
run endurance | marathon triathlon jog sprint race 5k 10k mile kilometer track trail ironman finish pace;
strength gym | weight lift squat deadlift bench dumbbell barbell muscle rep trainer crossfit pushup plank cardio
    treadmill protein;
mindfulness spirituality wellness selfcare | yoga meditate breath journal therapy massage spa retreat gratitude mantra
    tai chi pilates reflect;
string instrument | guitar violin cello ukulele banjo harp bass mandolin viola fiddle;
instrument | piano keyboard drum clarinet flute saxophone trumpet trombone oboe harmonica accordion organ;
genre style | jazz rock pop classical blues country hiphop rap metal punk folk reggae electronic techno indie soul
    gospel opera;
composer musician singer artist band | bach mozart beethoven chopin vivaldi beatles sheeran swift adele queen coldplay
    concert tour album;
dance | ballet salsa tango hiphop ballroom waltz choreograph contemporary studio recital tap routine dancer;
author writer novelist | rowling tolkien king christie austen dickens orwell hemingway martin lewis shakespeare
    murakami;
book series title read | potter hobbit rings thrones narnia alchemist gatsby dune sherlock hunger games chronicle
    trilogy saga volume paperback bookshelf bookmark shelf library;
genre literature | fantasy mystery thriller romance biography memoir fiction nonfiction history horror poetry classic
    dystopia scifi science adventure selfhelp psychology;
movie film title | inception titanic avengers marvel godfather matrix wars trek pixar disney ghibli casablanca
    trilogy;
television show series | sitcom drama episode season netflix documentary anime friends office thrones reality binge
    streaming;
video game console | nintendo playstation xbox switch zelda mario minecraft fortnite overwatch valorant cyberpunk
    witcher rpg fps multiplayer gamer controller quest esports pc steam;
board game card | chess monopoly scrabble catan poker dungeon dragon checkers uno domino jigsaw puzzle bridge dice;
dessert sweet baked treat pastry | cake pie cookie brownie cupcake muffin tart cobbler cheesecake pudding ice cream
    sorbet donut croissant macaron mousse chocolate candy caramel frosting parfait sundae scone pancake waffle honey;
breakfast | egg pancake waffle cereal oatmeal bacon toast bagel omelette granola yogurt smoothie coffee;
dinner meal dish | pasta pizza steak stew soup roast curry stirfry lasagna casserole burger taco risotto sushi ramen
    noodle salad sandwich chili bbq grill paella dumpling;
vegetable greens plant | carrot broccoli spinach kale tomato cucumber pepper onion garlic potato lettuce cabbage
    celery zucchini eggplant pea bean corn mushroom;
fruit | apple banana orange strawberry blueberry grape mango pineapple melon peach pear cherry kiwi lemon lime plum
    coconut raspberry;
meat fish protein seafood | chicken beef pork turkey lamb bacon sausage ham salmon tuna shrimp lobster crab cod tofu
    steak;
drink beverage | coffee tea juice water soda wine beer cocktail whiskey smoothie milk latte espresso lemonade cocoa
    champagne milkshake;
cuisine country style restaurant | italian chinese japanese mexican indian thai french korean greek vietnamese spanish
    turkish lebanese ethiopian bistro diner pizzeria;
allergy allergic intolerance | peanut gluten dairy lactose shellfish pollen dust fur nut reaction sneeze itch hive
    rash asthma epipen;
diet nutrition eating healthy | vegan vegetarian keto calorie protein carb sugar organic snack portion fiber salad
    smoothie soda candy weight;
doctor professional medical | dentist surgeon therapist physician nurse pediatrician psychologist dermatologist
    cardiologist specialist counselor vet clinic appointment checkup;
body part | ankle knee leg arm wrist back shoulder foot hand finger toe hip neck head eye ear tooth elbow stomach
    chest;
injury injured hurt accident | sprain fracture break cast crutch bandage tear strain bruise burn cut concussion stitch
    swell limp rehab physical therapy;
illness disease symptom condition | flu cold fever cough virus covid infection cancer diabetes asthma migraine
    headache nausea arthritis anemia ulcer pneumonia depression anxiety insomnia adhd;
mental emotional psychological | depression anxiety stress therapy therapist counsel trauma ptsd panic burnout grief
    selfesteem mindfulness cope support;
dog breed puppy | labrador retriever shepherd bulldog poodle husky beagle collie terrier chihuahua dachshund pug corgi
    rottweiler mutt;
cat pet kitten | tabby siamese persian litter scratch purr meow whisker;
pet care | vet leash collar groom groomer walk food treat toy bowl cage aquarium training obedience agility shelter
    adopt breeder flea park;
wild animal wildlife | bear wolf fox deer lion tiger elephant monkey giraffe zebra dolphin whale shark eagle owl hawk
    hummingbird butterfly snake zoo safari squirrel rabbit;
bird | eagle owl hawk parrot hummingbird duck swan goose robin sparrow pigeon flamingo penguin chicken;
flower plant garden | rose tulip sunflower daisy lily orchid lavender peony daffodil succulent cactus herb basil
    tomato seed soil bloom bouquet greenhouse pot;
country nation abroad foreign international | america usa canada mexico brazil argentina england uk britain scotland
    ireland france spain italy germany portugal greece sweden norway finland denmark netherlands switzerland austria
    poland russia turkey egypt morocco kenya india china japan korea thailand vietnam indonesia bali australia zealand
    europe asia africa iceland cuba peru colombia;
european europe | england france spain italy germany portugal greece sweden norway finland denmark netherlands
    switzerland austria poland ireland scotland iceland prague paris london rome barcelona berlin amsterdam;
city town urban | york chicago boston seattle miami denver austin dallas houston atlanta portland francisco angeles
    vegas diego philadelphia washington toronto vancouver montreal london paris rome milan barcelona madrid berlin
    munich amsterdam vienna prague dublin edinburgh tokyo kyoto osaka seoul beijing shanghai hong kong singapore
    bangkok sydney melbourne dubai istanbul cairo mumbai delhi orleans nashville minneapolis;
state region area | california texas florida alaska hawaii oregon colorado utah arizona nevada michigan ohio georgia
    carolina virginia tennessee montana minnesota coast northwest midwest south east west rocky;
landmark sight attraction tourist | tower castle cathedral temple palace statue bridge museum monument ruin pyramid
    canyon waterfall square market aquarium zoo gallery fort tour;
national park nature reserve | yellowstone yosemite grand canyon zion forest trail campground ranger wildlife hike
    glacier;
accommodation stay lodging | hotel hostel motel inn resort airbnb cabin lodge cottage villa campground tent suite
    room;
transport transportation travel vehicle | train bus car bike plane flight ferry taxi subway tram ship cruise scooter
    motorcycle van rental roadtrip drive;
car model brand vehicle | tesla ford honda toyota bmw mustang jeep ferrari chevrolet subaru sedan suv truck hybrid
    electric convertible vintage;
car repair maintenance mechanic | engine brake tire battery oil transmission garage auto restore fix breakdown tow
    accident insurance;
job profession occupation role title | teacher nurse doctor engineer lawyer chef waiter designer developer programmer
    accountant manager analyst writer journalist photographer actor artist musician coach firefighter police mechanic
    electrician carpenter barista bartender cashier salesman consultant scientist researcher librarian counselor
    therapist entrepreneur freelancer intern assistant director politician;
job loss unemployment | fire layoff lay quit resign unemploy redundant dismiss lose downsize close;
job application hiring | interview resume apply offer hire recruiter position salary negotiate internship candidate
    portfolio cover;
business company startup venture entrepreneur | shop store brand market customer investor fund launch product online
    website logo client partner profit revenue sales advertise supplier inventory franchise;
brand company sponsor endorsement deal | nike adidas apple google amazon microsoft puma contract endorse gear
    commercial;
work stress problem challenge | deadline overtime boss pressure burnout workload busy meeting project promotion
    balance;
school subject major field course | math science history english literature biology chemistry physics psychology
    economics engineering art music philosophy sociology politics law medicine business marketing finance accounting
    nursing computer statistics anatomy language;
school event level | kindergarten elementary highschool college university freshman sophomore senior graduate prom
    exam semester homework thesis degree bachelor master phd diploma scholarship tuition;
language speak foreign | english spanish french german italian portuguese chinese mandarin japanese korean arabic
    russian hindi dutch swedish duolingo fluent translate vocabulary grammar;
certificate qualification license training | course class workshop bootcamp degree diploma exam pass certify webinar
    seminar lesson;
family member relative | mom dad mother father sister brother son daughter aunt uncle cousin grandma grandpa
    grandmother grandfather niece nephew twin husband wife parent stepfather inlaw;
family event milestone | birth baby pregnant wedding engagement anniversary graduation funeral reunion birthday
    adoption divorce move;
child kid activity | playground toy school park zoo swing slide lego doll cartoon bedtime story homework soccer
    sleepover playdate;
death loss grief mourn | die pass funeral memorial grieve heaven cemetery widow condolence miss lose tragic;
relationship status romantic partner love date | single married divorced engaged dating breakup boyfriend girlfriend
    husband wife fiance wedding propose ex widow separate crush;
pregnancy baby newborn | pregnant birth expecting due delivery diaper crib stroller ultrasound infant nursery;
friend social companion | buddy neighbor colleague roommate classmate teammate hangout party gathering group club;
support supportive encourage help | listen mentor motivate cheer inspire advice guidance rock there grateful;
mentor role model inspire inspiration influence | coach teacher hero idol admire guide lesson grandfather grandmother
    legend;
charity cause volunteering donate community service | volunteer shelter homeless fundraiser foodbank soup kitchen toy
    drive blood campaign nonprofit rally petition orphanage hospital tutor cleanup veteran;
military army veteran patriotic service | navy marine soldier airforce deploy serve country flag patriot enlist base;
politics political government election | vote mayor senate congress president campaign candidate office policy law tax
    reform debate party democrat republican council infrastructure education;
activism rights protest movement social | march rally parade petition activist equality justice pride lgbtq gay
    lesbian transgender feminist racism climate awareness advocate inclusive ally;
identity gender orientation | transgender gay lesbian bisexual queer woman man nonbinary transition lgbtq pride
    journey self;
environment sustainability climate ecological green | recycle pollution plastic solar energy electric waste compost
    carbon conservation ecofriendly sustainable cleanup tree planet;
religion religious faith belief spiritual | church pray prayer god jesus bible christian catholic muslim islam jewish
    hindu buddhist mosque temple synagogue worship pastor priest bless sermon cross;
holiday festive season celebrate | christmas thanksgiving easter halloween newyear valentine hanukkah diwali ramadan
    fourth independence eve santa turkey costume gift decorate firework;
party celebration gathering event | birthday wedding anniversary shower housewarming bbq potluck dinner gala reception
    toast cake balloon invite guest;
show performance event venue | concert festival play theater musical recital exhibition gallery standup comedy opera
    circus parade fair gig stage audience ticket;
competition contest tournament race | win lose compete championship final match medal trophy prize judge entry
    opponent rank score finish place;
award prize achievement honor recognition | medal trophy certificate scholarship promotion record mvp champion first
    title recognize publish;
outdoor adventure thrill extreme | skydive bungee climb rappel paraglide zipline rafting surf snowboard hike
    mountaineering trek expedition explore hangglide;
camping camp tent | campfire marshmallow hike sleeping bag backpack trail lantern forest stargaze meteor;
sky space astronomy stars | star moon sun meteor telescope planet eclipse sunrise sunset aurora galaxy nasa rocket
    constellation;
craft handmade make create | pottery knit sew crochet quilt woodwork origami scrapbook jewelry candle clay ceramic
    bowl cup embroidery weave build paint diy model;
painting paint artwork subject draw | canvas watercolor acrylic oil portrait landscape sunset abstract sketch mural
    brush palette gallery easel horse flower sunrise;
photography photo picture camera | lens shoot portrait landscape album frame darkroom film digital exhibition snap;
writing write writer creative | novel story poem poetry blog article screenplay script journal essay book draft
    publish editor chapter plot character magazine;
home house room furniture | kitchen bedroom bathroom living sofa couch table chair lamp shelf desk bed carpet curtain
    garage attic basement balcony yard fireplace decor;
household chore clean | laundry vacuum dish wash dust mop tidy organize declutter trash iron cook fix repair;
appliance household device kitchen | fridge oven stove microwave dishwasher washer dryer freezer toaster blender mixer
    kettle boiler heater fryer grill machine;
property housing move live residence apartment | rent mortgage landlord lease neighborhood downtown suburb house condo
    flat relocate roommate buy realtor;
renovation home improvement repair | renovate paint remodel fix install roof floor plumbing leak wall tile contractor;
device gadget technology electronic | phone laptop tablet computer watch headphone speaker camera drone printer
    monitor keyboard charger tv console robot;
software app programming computer | website code program python java javascript bug server database algorithm ai cloud
    update design debug deploy test api;
social media online internet | instagram facebook twitter youtube tiktok blog vlog podcast post follower stream
    channel influencer video content share platform forum;
money finance financial budget | save loan debt mortgage credit bank invest stock tax salary rent bill afford pay
    price bonus retirement pension insurance;
clothing clothes wear fashion apparel outfit | shirt dress shoe sneaker boot jacket coat hat cap pants jeans skirt
    sock sweater hoodie suit tie glove belt uniform jersey;
jewelry accessory | necklace ring bracelet earring watch pendant brooch bag purse wallet sunglasses hat belt scarf;
keepsake collection collectible memorabilia symbol sentimental item | necklace ring photo album autograph jersey
    signed stamp coin card figurine poster vinyl souvenir heirloom cherish pendant medal;
toy childhood | doll lego teddy bear train puzzle ball bike yoyo kite swing;
shopping bought purchase item | buy order store shop mall online sale deal gift shoe dress shirt car phone book lamp
    toy;
weather disaster emergency | storm flood fire wildfire hurricane tornado earthquake rain snow evacuate power outage
    damage rescue firefighter;
emergency service rescue safety | firefighter police ambulance paramedic siren 911 fire crash cpr;
crime legal law | police court lawyer judge theft steal robbery ticket fine arrest jail lawsuit contract sue;
emotion negative feel upset | sad angry frustrated disappointed lonely scared anxious worried nervous stress
    overwhelmed hurt cry ashamed jealous tough rough down discourage;
emotion positive feel happy | excited proud joy grateful thankful thrilled glad relieved hopeful peaceful calm love
    amazing accomplish inspired motivated blessed;
fear phobia afraid | scared nervous spider height dark shark fly panic terrified;
personality trait attribute character quality describe | kind caring thoughtful empathetic brave strong honest loyal
    patient creative passionate driven determined funny smart shy confident generous selfless resilient compassionate
    ambitious hardworking rational authentic;
goal plan aspiration ambition future dream | hope want aim wish someday open start own become achieve pursue career
    next bucket;
hobby interest pastime free leisure | read paint hike cook garden game guitar photography knit dance travel chess fish
    write yoga run bake collect draw sing puzzle birdwatch podcast;
habit routine daily | morning night every wake sleep walk run coffee meditate journal exercise schedule usually week;
memory childhood past nostalgia | remember kid grew young used grandma old school summer nostalgic;
problem difficulty challenge struggle setback obstacle | tough hard issue difficult injury fail lose stuck frustrate
    stress rough accident;
frustration annoy complain | frustrate hard find stuck broken late traffic noise wait cancel problem;
advice tip recommend suggestion | try suggest should best helpful important start;
opinion think view favorite prefer | love best like enjoy amazing great recommend fan beautiful;
color | red blue green yellow orange purple pink black white brown gray gold silver;
number count times | once twice first second third two three four five another again every;
size amount distance | mile kilometer hour minute dollar pound pounds kilo inch foot percent hundred thousand;
music event attend | concert festival gig show band live tour ticket stage crowd;
meal companion cooking class recipe learn | cook bake dish ingredient flavor taste try roast grill kitchen;
road trip journey drive | roadtrip car highway route mile scenic stop gas;
beach seaside coast vacation | sand wave surf shell sun ocean shore sea tan tide;
hike trail mountain | summit peak view climb waterfall backpack boots forest trek ridge;
health goal weight fitness change lifestyle | lose diet exercise walk gym doctor blood pressure sugar healthy calorie
    sleep water snack smartwatch;
sleep rest tired | insomnia nap bed exhausted dream night wake pillow;
smoking alcohol addiction | smoke cigarette quit drink sober vape;
class group club join | member team workshop course league community meetup choir band committee;
place visit favorite spot | park cafe restaurant museum beach library bar mall market lake garden shelter gym church
    bakery;
birthday age old born | turn year celebrate young;
name call named | nickname;
"""
"""Topics as in `broad_topics`."""
