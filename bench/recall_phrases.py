"""The phrases of synthetic chats: their records, and the English phrases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that is mentioned once: its statement, questions about it, and later remarks to which it is relevant."""

    key: str
    told: str
    questions: Sequence[str]
    remarks: Sequence[str]
    by_assistant: bool = False
    cue: str = ""


@dataclass(frozen=True, slots=True)
class Phrases:
    """All phrases for a chat in one language."""

    facts: Sequence[Fact]
    values: Mapping[str, Sequence[str]]
    tasks: Sequence[str]
    subjects: Sequence[str]
    follow_ups: Sequence[str]
    advice: Sequence[str]
    joint: str


ENGLISH = Phrases(
    facts=(
        Fact(
            "relation",
            "By the way, my {relation} just moved to {city} for a new position.",
            ("Where does my {relation} live now?", "Which city did my {relation} relocate to?"),
            ("I should pay my {relation} a visit in the new town.",),
        ),
        Fact(
            "animal",
            "I can't type much, our {animal} named {name} keeps jumping on me.",
            ("What is my {animal} called?",),
            ("I think my {animal} needs a check-up at the vet.",),
        ),
        Fact(
            "dish",
            "I'm allergic to {dish}, so keep that in mind.",
            ("Is there any food I must avoid, like {dish}?", "What allergy did I tell you about concerning {dish}?"),
            ("Tonight a friend is serving {dish} at her place.",),
        ),
        Fact(
            "instrument",
            "I've been taking {instrument} lessons for {number} weeks now.",
            (
                "How long have I been learning the {instrument}?",
                "Which instrument am I studying, is it the {instrument}?",
            ),
            ("My {instrument} teacher was pleased with me today.",),
        ),
        Fact(
            "item",
            "I finally bought the {item} for {number} dollars last Saturday.",
            ("How much did I pay for the {item}?", "When did I get my {item}?"),
            ("The {item} has stopped working already, what a shame.",),
        ),
        Fact(
            "event",
            "I signed up for the {event} that takes place in {city}.",
            ("In which city is the {event} that I'm attending?",),
            ("I feel nervous about the {event}.",),
        ),
        Fact(
            "book",
            'I just finished reading "{book}" and loved it.',
            ('What did I think of "{book}"?',),
            ('A friend asked me to lend her "{book}".',),
        ),
        Fact(
            "appliance",
            "Our {appliance} broke down again, the repair cost {number} euros.",
            ("What did fixing the {appliance} cost?",),
            ("The {appliance} is making that noise again.",),
        ),
        Fact(
            "colleague",
            "My colleague {colleague} is going to lead the {project} project from now on.",
            ("Who is in charge of the {project} project, was it {colleague}?", "What did {colleague} take over?"),
            ("I have a meeting with {colleague} tomorrow.",),
        ),
        Fact(
            "plant",
            "I planted {plant} on the balcony, {number} pots of them.",
            ("How many pots of {plant} do I have?",),
            ("It will freeze tonight, and the {plant} are outside.",),
        ),
        Fact(
            "course",
            "I got {number} points in my {course} exam, better than I feared.",
            ("What was my score in the {course} exam?",),
            ("Next term I will continue with {course}.",),
        ),
        Fact(
            "place",
            "For {place} I would suggest the {hotel}, which is quiet and close to the centre.",
            ("Which hotel did you recommend in {place}?", "You suggested somewhere to stay in {place}, what was it?"),
            ("We are leaving for {place} next week.",),
            by_assistant=True,
            cue="Can you recommend a hotel in {place}?",
        ),
        Fact(
            "sport",
            "My knee has hurt since the {sport} practice on Monday.",
            ("What did I hurt at {sport}?",),
            ("Coach wants me back at {sport} this week.",),
        ),
        Fact(
            "gift",
            "For her birthday I gave my sister a {gift}, she cried with joy.",
            ("What present did my sister receive from me, a {gift}?",),
            ("My sister says that the {gift} is her favourite thing.",),
        ),
        Fact(
            "language",
            "I can hold a simple conversation in {language} since my year abroad.",
            ("How well do I speak {language}?",),
            ("A client wrote to me in {language}.",),
        ),
    ),
    values={
        "relation": ("brother", "cousin", "aunt", "neighbor", "grandson", "uncle", "niece"),
        "city": ("Lisbon", "Denver", "Osaka", "Leeds", "Porto", "Graz", "Tampa"),
        "animal": ("parrot", "beagle", "hamster", "tabby cat", "tortoise"),
        "name": ("Biscuit", "Nacho", "Olive", "Pablo", "Ziggy"),
        "dish": ("peanuts", "shellfish", "sesame", "kiwi", "walnuts"),
        "instrument": ("cello", "banjo", "oboe", "harp", "accordion"),
        "number": ("12", "35", "48", "64", "90", "210", "3"),
        "item": ("espresso machine", "standing desk", "electric scooter", "air fryer", "telescope"),
        "event": ("chess tournament", "sourdough workshop", "half marathon", "poetry slam"),
        "book": ("The Glass Orchard", "Northern Salt", "A Year of Rivers", "Paper Lanterns"),
        "appliance": ("dishwasher", "boiler", "freezer", "washing machine"),
        "colleague": ("Priya", "Tomasz", "Ingrid", "Kwame"),
        "project": ("billing", "warehouse", "onboarding", "archive"),
        "plant": ("tomatoes", "geraniums", "strawberries", "basil"),
        "course": ("statistics", "anatomy", "contract law", "welding"),
        "place": ("Vienna", "Seville", "Kyoto", "Bruges"),
        "hotel": ("Blue Heron Inn", "Hotel Miramar", "Old Mill Lodge", "Casa Verde"),
        "sport": ("handball", "fencing", "rugby", "badminton"),
        "gift": ("silk scarf", "record player", "pottery wheel", "fountain pen"),
        "language": ("Danish", "Swahili", "Portuguese", "Korean"),
    },
    tasks=(
        "Can you help me to write a short text about {subject}?",
        "What are good ways to get started with {subject}?",
        "Explain {subject} to me like I'm new to it.",
        "I need a checklist for {subject}.",
        "Give me five ideas around {subject}.",
        "How would you compare the options for {subject}?",
        "Please review my plan on {subject}.",
    ),
    subjects=(
        "public speaking",
        "time management",
        "spreadsheet formulas",
        "interior lighting",
        "travel insurance",
        "bread baking",
        "job applications",
        "email etiquette",
        "home workouts",
        "garden design",
        "savings accounts",
        "note taking",
        "unit testing",
        "meal planning",
        "podcast editing",
        "watercolor basics",
        "data backups",
        "team retrospectives",
    ),
    follow_ups=(
        "Thanks, that helps. Can you go deeper?",
        "Could you make that shorter?",
        "What would you do first?",
        "Okay, and what are the risks?",
        "Great, give me an example.",
    ),
    advice=(
        "Begin with a small step for {subject} and write down what you learn.",
        "Set a clear goal, because {subject} can mean many things to many people.",
        "Make a list of what you already have, and of what you still need to buy.",
        "Ask a friend or a colleague who knows {subject} well for honest feedback.",
        "Plan for about thirty minutes a day, and keep one day of the week free.",
        "It is important to compare at least three sources before you decide.",
        "Review your progress every Sunday evening, and change what does not work.",
        "Many people find that {subject} gets easier after the first two weeks.",
        "Keep your notes in one place, so that you can find them again next month.",
        "Avoid buying expensive equipment or a course before you know what you like.",
        "If you feel stuck, take a break, go for a walk, and return with a fresh mind.",
        "A simple template for {subject} saves time: purpose, audience, steps, result.",
        "Consider the cost, the quality and how long it will last.",
        "Finally, celebrate what you have reached, and share it with your family.",
        "Read one good book or article on {subject} and summarise it in your own words.",
        "You may also look for a local group that meets in your city.",
    ),
    joint=" ",
)
