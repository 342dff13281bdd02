"""Sentences that hold facts, and the JSON objects that they fill."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from . import words as w

Facts = tuple[dict[str, Any], list[str]]


def person(r: Random) -> Facts:
    f = {"name": w.full_name(r), "age": r.randint(8, 99), "city": w.city(r), "job": r.choice(w.JOBS)}
    return f, [
        "{name} is {age} years old, lives in {city} and works as a {job}.",
        "Meet {name}, a {job} from {city}, aged {age}.",
        "In {city} I met a {job} called {name}, who is {age}.",
        "{name}, {age}, has been a {job} in {city} for years.",
    ]


def order(r: Random) -> Facts:
    f = {
        "item": r.choice(w.THINGS),
        "colour": r.choice(w.COLOURS),
        "quantity": r.randint(2, 60),
        "customer": w.full_name(r),
        "price": r.randint(3, 400),
    }
    return f, [
        "{customer} ordered {quantity} pieces of the {colour} {item} at {price} euros each.",
        "Please send {quantity} {colour} {item}s to {customer}; each costs {price} euros.",
        "An order came in from {customer}: {quantity} times the {item} in {colour}, {price} euros apiece.",
    ]


def event(r: Random) -> Facts:
    f = {
        "title": r.choice(["workshop", "concert", "meeting", "lecture", "dinner", "fair", "match"]),
        "date": w.date(r),
        "time": w.clock(r),
        "place": w.city(r),
        "host": w.full_name(r),
    }
    return f, [
        "The {title} takes place in {place} on {date} at {time}, hosted by {host}.",
        "{host} invites you to a {title} on {date}, {time}, in {place}.",
        "On {date} there is a {title} in {place}; it begins at {time} and {host} leads it.",
    ]


def book(r: Random) -> Facts:
    f = {
        "title": r.choice(w.TITLES),
        "author": w.full_name(r),
        "year": r.randint(1850, 2026),
        "pages": r.randint(80, 900),
    }
    return f, [
        "{author} wrote {title} in {year}; it has {pages} pages.",
        "{title} by {author} appeared in {year} and runs to {pages} pages.",
        "In {year} a book of {pages} pages came out: {title}, by {author}.",
    ]


def weather(r: Random) -> Facts:
    f = {
        "city": w.city(r),
        "temperature": r.randint(-15, 39),
        "wind": r.randint(0, 90),
        "sky": r.choice(["clear", "cloudy", "overcast", "foggy"]),
    }
    return f, [
        "It is {temperature} degrees in {city} today, {sky}, with wind of {wind} km/h.",
        "{city} reports a {sky} sky, {temperature} degrees and wind at {wind} km/h.",
    ]


def flight(r: Random) -> Facts:
    f = {
        "flight": r.choice("ABCDEFKLMS") + r.choice("ABCDEFKLMS") + str(r.randint(100, 9999)),
        "origin": w.city(r),
        "destination": w.city(r),
        "date": w.date(r),
        "seat": f"{r.randint(1, 40)}{r.choice('ABCDEF')}",
    }
    return f, [
        "Flight {flight} leaves {origin} for {destination} on {date}; your seat is {seat}.",
        "You fly from {origin} to {destination} with {flight} on {date}, seat {seat}.",
    ]


def contact(r: Random) -> Facts:
    f = {
        "name": w.full_name(r),
        "email": w.email(r),
        "phone": f"{r.randint(100, 999)}-{r.randint(1000, 9999)}",
        "company": w.invented(r).capitalize(),
    }
    return f, [
        "{name} of {company} can be reached at {email} or by phone at {phone}.",
        "Write to {email} or call {phone} and ask for {name} from {company}.",
        "My contact at {company} is {name}, {email}, phone {phone}.",
    ]


FORMS: list[Callable[[Random], Facts]] = [person, order, event, book, weather, flight, contact]


def form(r: Random) -> tuple[str, dict[str, Any]]:
    """A sentence, and the object that some of its facts fill, keys in the order asked for."""
    facts, sentences = r.choice(FORMS)(r)
    sentence = r.choice(sentences).format(**facts)
    keys = list(facts)
    if r.random() < 0.5:
        r.shuffle(keys)
    keys = keys[: r.randint(2, len(keys))]
    return sentence, {key: facts[key] for key in keys}
