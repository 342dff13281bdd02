"""/docs: the OpenAPI description as a page to read, made here, without anything from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response

from .page import HEADERS

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
:root{color-scheme:light dark}
h2{margin-top:2.5rem;font-size:1.1rem}code,h2{font-family:ui-monospace,monospace}table{border-collapse:collapse;width:100%}
td{border-top:1px solid #8884;padding:.25rem .75rem .25rem 0;vertical-align:top}td:first-child{white-space:nowrap}"""


def mount(app: FastAPI) -> None:
    """Add the route; like the description itself it needs a key where the server has one."""

    async def docs(http: HttpRequest) -> Response:
        page = _page(app.openapi())
        policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
        return HTMLResponse(page, headers={**HEADERS, "content-security-policy": policy, "cache-control": "no-cache"})

    app.add_route("/docs", docs, ["GET"], include_in_schema=False)


def _page(description: dict[str, Any]) -> str:
    info = description["info"]
    parts = [f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"]
    parts.append('<p>The same for programs: <a href="/openapi.json">openapi.json</a></p>')
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>")
            parts.append(_fields(operation, description))
            answers = (
                f"<td><code>{code}</code><td>{escape(r['description'])}" for code, r in operation["responses"].items()
            )
            parts.append(f"<table><tr>{'<tr>'.join(answers)}</table>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><title>Jubako: interfaces</title>{head}{"".join(parts)}</html>'


def _fields(operation: dict[str, Any], description: dict[str, Any]) -> str:
    """The fields of the body as a table."""
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    schema = _resolved(schema, description)
    rows = []
    for name, field in schema.get("properties", {}).items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        said = escape(field.get("description", ""))
        rows.append(f"<td><code>{escape(name)}</code><td>{escape(_kind(field))}{needed}<td>{said}")
    return f"<table><tr>{'<tr>'.join(rows)}</table>" if rows else ""


def _resolved(schema: dict[str, Any], description: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = description["components"]["schemas"][name] if name else schema
    return found


def _kind(field: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(kind for part in field["anyOf"] if (kind := _kind(part)) != "null")
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    bounds = [f"{sign} {field[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in field]
    return " ".join([str(field.get("const", field.get("type", "anything"))), *bounds])
