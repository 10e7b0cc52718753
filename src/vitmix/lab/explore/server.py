"""Serves the page on this machine alone: one host, no files, no uploads to disk, nothing from outside."""

# pyright: reportMissingImports=false

import errno
import json
import os
import re
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .explorer import Explorer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "[::1]")
MOST_BODY = 40 * 2**20  # bytes of one request: two uploads as text, and the rest
# What the page asks for; Gradio answers more, such as files by their path.
ROUTES = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt|(assets|static|svelte)/[\w./-]+)/?"
    r"|/gradio_api/(info|config|app_id|startup-events|theme\.css|reset|cancel|heartbeat/\w+"
    r"|queue/(join|data)|(call|run|api)/[\w./-]+)/?"
)
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)


class Guard:
    """Refuses requests of other hosts, unknown routes, large bodies and files; adds a content security policy."""

    def __init__(self, app: "ASGIApp", *, hosts: Collection[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = self._refused(scope)
        if status is None and scope["method"] == "POST":
            body = await _body(receive)
            status, receive = _refused_body(body), _replayed(body, receive)
        if status is not None:
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def guarded(message: "Message") -> None:
            if message["type"] == "http.response.start":
                added = [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self.app(scope, receive, guarded)

    def _refused(self, scope: "Scope") -> int | None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = re.sub(r":\d+$", "", headers.get("host", ""))
        if host not in self.hosts:  # another name that points here (DNS rebinding)
            return 421
        if not ROUTES.fullmatch(scope["path"]) or ".." in scope["path"]:
            return 404
        if scope["method"] == "POST":
            length = headers.get("content-length", "")
            if not length.isdigit():
                return 411
            if int(length) > MOST_BODY:
                return 413
        return None


async def _body(receive: "Receive") -> bytes:
    """The whole body, of the length that its header says."""
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


def _replayed(body: bytes, receive: "Receive") -> "Receive":
    """Gives the app a body that was already read, then what follows it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> "Message":
        return messages.pop() if messages else await receive()

    return replay


def _refused_body(body: bytes) -> int | None:
    """The page sends texts, numbers and lists of them. From an object, Gradio would make a file, or download one."""
    try:
        sent = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return 400
    if not isinstance(sent, dict):
        return 400
    # What a click was on; Gradio does not look for files there.
    return 400 if any(_has_object(value) for key, value in sent.items() if key != "event_data") else None


def _has_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_object, value)))


def check_port(port: int) -> None:
    """Raises ValueError if the page cannot be served at a port."""
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be 1 to 65535, got {port}")
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Gradio does
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise ValueError(f"port {port} {reason}; choose another one, or leave --port out") from None


def serve(
    explorer: Explorer, *, port: int | None = None, share: bool = False, browser: bool = False, block: bool = True
) -> tuple[Any, str]:
    """Starts the page and returns it with its address. `share` asks Gradio for a public link."""
    # Gradio reads these when it is imported.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from starlette.middleware import Middleware

    from .page import build_page, look

    page = build_page(explorer)
    page.queue(max_size=32)
    hosts = {*LOCAL}
    _, address, shared = page.launch(
        server_name="127.0.0.1",
        server_port=port,
        share=share,
        inbrowser=browser,
        prevent_thread_lock=True,
        quiet=True,
        show_error=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        allowed_paths=[],
        max_file_size=1,
        app_kwargs={"middleware": [Middleware(Guard, hosts=hosts)], "docs_url": None},
        **look(),
    )
    if shared:
        hosts.add(urlsplit(shared).netloc)
    if block:
        print(f"vitmix explore: {address} (Ctrl+C ends it)", flush=True)
        if shared:
            print(f"Public link, which anyone can open: {shared}", flush=True)
        page.block_thread()
    return page, address
