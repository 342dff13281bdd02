"""Schemas and functions that answers are held to in tests."""

from __future__ import annotations

from typing import Any

S: dict[str, Any] = {"type": "string"}
SHORT: dict[str, Any] = {"type": "string", "maxLength": 9}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object without further properties."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS: list[dict[str, Any]] = [
    closed(["name", "age"], name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 150}),
    closed(["score", "n"], score={"type": "number", "minimum": 0, "maximum": 1}, n={"type": "integer", "minimum": -5}),
    closed(["colour", "on"], colour={"enum": ["red", "green", "blue"]}, on={"type": "boolean"}, no={"type": "null"}),
    closed(["who"], who=closed(["first", "last"], first=SHORT, last=SHORT)),
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 4},
    closed(["b"], a=SHORT, b={"type": "integer"}, c={"type": "boolean"}),
    closed(["zip"], zip={"type": "string", "pattern": "^[0-9]{5}$"}, code={"type": "string", "pattern": "^[A-Z]{2}-"}),
    {"anyOf": [closed(["k", "x"], k={"const": "a"}, x={"type": "integer"}), closed(["k"], k={"const": "b"}, y=SHORT)]},
    {
        "$defs": {
            "node": closed(["v"], kids={"type": "array", "items": {"$ref": "#/$defs/leaf"}}, v=SHORT),
            "leaf": SHORT,
        },
        "$ref": "#/$defs/node",
    },
    closed(["text"], text={"type": "string", "minLength": 3, "maxLength": 20}),
    closed(["名前", "emoji"], **{"名前": SHORT, "emoji": {"enum": ["🍱", "é", '\n"x\\']}}),
    {"type": "array", "prefixItems": [SHORT, {"type": "number"}], "items": False, "minItems": 2},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "maxProperties": 3},
    closed(["date", "id"], date={"type": "string", "format": "date"}, id={"type": "string", "format": "uuid"}),
    {"oneOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    closed(
        ["m"], m={"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2}, "maxItems": 2}
    ),
    closed(["v", "step"], v={"type": ["string", "integer", "null"], "maxLength": 5}, step={"multipleOf": 5}),
    closed(["p3", "p7"], **{f"p{i}": {"type": "boolean"} for i in range(9)}),
    {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/definitions/item"}, "minItems": 1, "maxItems": 2}
        },
        "required": ["items"],
        "definitions": {
            "item": closed(["sku", "price"], sku={"type": "string", "pattern": "^[a-z]{3}$"}, price={"type": "number"})
        },
    },
]

WEATHER: dict[str, Any] = closed(["city"], city={"type": "string", "maxLength": 20})
BOOKING: dict[str, Any] = {
    "type": "object",
    "$defs": {"Class": {"enum": ["first", "second"]}},
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 12},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9},
        "travel": {"$ref": "#/$defs/Class"},
        "note": {"anyOf": [{"type": "string", "maxLength": 10}, {"type": "null"}]},
        "stops": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"},
        "price": {"type": "number", "exclusiveMinimum": 0, "maximum": 500},
        "options": closed(["wifi"], wifi={"type": "boolean"}, meal={"enum": ["none", "veg"]}),
    },
    "required": ["name", "seats", "travel", "code", "options"],
    "additionalProperties": False,
}
