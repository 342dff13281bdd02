# ruff: noqa: E501 - tables of sentences
"""Functions that a model can call, each with sentences that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from . import words as w

Maker = Callable[[Random], Any]
S, N = "string", "integer"


def _text(r: Random) -> str:
    pool = w.THINGS + w.FOODS + w.HOBBIES
    return " ".join(w.invented(r) if r.random() < 0.3 else r.choice(pool) for _ in range(r.randint(1, 3)))


def _number(low: int, high: int) -> Maker:
    return lambda r: r.randint(low, high)


def _one(*values: str) -> Maker:
    return lambda r: r.choice(values)


# name, description, {parameter: (type, maker)}, sentences
LIBRARY: list[tuple[str, str, dict[str, tuple[str, Maker]], list[str]]] = [
    ("get_weather", "Weather of a city", {"city": (S, w.city)}, ["What's the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?"]),
    ("get_forecast", "Forecast for some days", {"city": (S, w.city), "days": (N, _number(2, 10))}, ["Give me the forecast for {city} for the next {days} days.", "What will the weather be in {city} over {days} days?"]),
    ("get_time", "Current time in a city", {"city": (S, w.city)}, ["What time is it in {city}?", "Tell me the local time in {city}."]),
    ("send_email", "Send an email", {"to": (S, w.email), "subject": (S, _text)}, ["Send an email to {to} about {subject}.", "Write to {to} with the subject {subject}."]),
    ("set_alarm", "Set an alarm", {"time": (S, w.clock)}, ["Wake me at {time}.", "Set an alarm for {time}.", "I need an alarm at {time}."]),
    ("set_timer", "Start a timer", {"minutes": (N, _number(1, 90))}, ["Start a timer of {minutes} minutes.", "Remind me in {minutes} minutes.", "Set a timer for {minutes} minutes, please."]),
    ("add_event", "Put an event in the calendar", {"title": (S, _text), "date": (S, w.date)}, ["Put {title} in my calendar for {date}.", "Add an event on {date}: {title}."]),
    ("list_events", "Events of a day", {"date": (S, w.date)}, ["What is in my calendar on {date}?", "Which events do I have on {date}?"]),
    ("search_web", "Search the web", {"query": (S, _text)}, ["Search the web for {query}.", "Look up {query} online.", "Find pages about {query}."]),
    ("translate", "Translate a text", {"text": (S, _text), "language": (S, _one("French", "German", "Spanish", "Italian", "Polish"))}, ["Translate {text} into {language}.", "How do you say {text} in {language}?"]),
    ("convert_currency", "Convert money", {"amount": (N, _number(1, 5000)), "source": (S, _one("EUR", "USD", "GBP", "JPY")), "target": (S, _one("CHF", "SEK", "NOK", "CAD"))}, ["How much is {amount} {source} in {target}?", "Convert {amount} {source} to {target}."]),
    ("book_flight", "Book a flight", {"origin": (S, w.city), "destination": (S, w.city), "date": (S, w.date)}, ["Book a flight from {origin} to {destination} on {date}.", "I want to fly from {origin} to {destination} on {date}."]),
    ("book_table", "Reserve a table", {"people": (N, _number(2, 14)), "time": (S, w.clock)}, ["Reserve a table for {people} people at {time}.", "Book a table at {time} for {people}."]),
    ("play_music", "Play music", {"title": (S, _text)}, ["Play {title}.", "Put on the song {title}.", "I want to hear {title}."]),
    ("turn_on_light", "Switch on a lamp", {"room": (S, _one("kitchen", "bedroom", "hall", "office", "garage", "bathroom"))}, ["Turn on the light in the {room}.", "It's dark in the {room}, make light."]),
    ("set_temperature", "Set the heating", {"room": (S, _one("kitchen", "bedroom", "hall", "office", "garage", "bathroom")), "degrees": (N, _number(14, 26))}, ["Heat the {room} to {degrees} degrees.", "Set the {room} to {degrees} degrees."]),
    ("read_file", "Read a file", {"path": (S, lambda r: f"/{w.invented(r)}/{w.invented(r)}.{r.choice(['txt', 'py', 'md', 'csv'])}")}, ["Show me the file {path}.", "What is in {path}?", "Read {path}."]),
    ("delete_file", "Delete a file", {"path": (S, lambda r: f"/{w.invented(r)}/{w.invented(r)}.{r.choice(['txt', 'py', 'md', 'csv'])}")}, ["Delete {path}.", "Remove the file {path}."]),
    ("run_tests", "Run the tests of a package", {"package": (S, w.invented)}, ["Run the tests of {package}.", "Do the tests of the package {package} pass?"]),
    ("create_user", "Create an account", {"name": (S, w.full_name), "email": (S, w.email)}, ["Create an account for {name}, {email}.", "Add the user {name} with the address {email}."]),
    ("find_contact", "Find somebody's contact", {"name": (S, w.full_name)}, ["What is the number of {name}?", "Find the contact of {name}."]),
    ("order_item", "Order something", {"item": (S, lambda r: r.choice(w.THINGS)), "quantity": (N, _number(2, 50))}, ["Order {quantity} of the {item}.", "Buy {quantity} times the {item}."]),
    ("track_parcel", "Where a parcel is", {"code": (S, lambda r: f"{r.choice('ABCXYZ')}{r.randint(10000, 999999)}")}, ["Where is my parcel {code}?", "Track the parcel {code}."]),
    ("get_stock_price", "Price of a share", {"symbol": (S, lambda r: "".join(r.choice("ABCDEFGHKLMNPRSTVX") for _ in range(r.randint(3, 4))))}, ["What does {symbol} trade at?", "Give me the share price of {symbol}."]),
    ("find_recipe", "Find a recipe", {"ingredient": (S, lambda r: r.choice(w.FOODS))}, ["What can I cook with {ingredient}?", "Find a recipe with {ingredient}."]),
    ("get_route", "Way between two places", {"start": (S, w.city), "end": (S, w.city)}, ["How do I get from {start} to {end}?", "Show the way from {start} to {end}."]),
    ("calculate", "Evaluate an expression", {"expression": (S, lambda r: f"{r.randint(2, 999)} {r.choice('*/-')} {r.randint(2, 999)}")}, ["Calculate {expression}.", "What is {expression}?"]),
    ("add_note", "Save a note", {"text": (S, _text)}, ["Note down: {text}.", "Save a note that says {text}."]),
]  # fmt: skip


def offer(r: Random) -> tuple[list[dict[str, Any]], str, str, dict[str, Any]]:
    """Three functions, a sentence that asks for one of them, its name and its arguments."""
    chosen = r.sample(LIBRARY, 3)
    name, _, parameters, sentences = r.choice(chosen)
    arguments = {key: make(r) for key, (_, make) in parameters.items()}
    described = []
    for other, text, fields, _ in chosen:
        properties = {key: {"type": kind} for key, (kind, _) in fields.items()}
        function = {
            "name": other,
            "description": text,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        }
        described.append({"type": "function", "function": function})
    return described, r.choice(sentences).format(**arguments), name, arguments
