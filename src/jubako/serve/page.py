"""The web page at /: files that lie in the package, read once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

FOLDER = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def mount(app: FastAPI) -> None:
    """Add a route for every file of the page; names that carry a hash may be kept forever by a browser."""
    for file in sorted(path for path in FOLDER.rglob("*") if path.is_file() and path.suffix in _TYPES):
        name = file.relative_to(FOLDER).as_posix()
        path = "/" if name == "index.html" else f"/{name}"
        kept = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        app.add_route(path, _file(file.read_bytes(), _TYPES[file.suffix], kept), ["GET"], include_in_schema=False)


def _file(content: bytes, kind: str, kept: str) -> Callable[[HttpRequest], Awaitable[Response]]:
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "cache-control": kept, "etag": tag}

    async def serve(http: HttpRequest) -> Response:
        if http.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return serve
