"""Downloads without a network fail within seconds, and the cache still works."""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from huggingface_hub import constants

SECONDS = 4.0  # until a host that does not answer counts as unreachable


def can_connect(url: str) -> bool:
    """Whether the host of a URL, or the proxy on the way to it, answers soon."""
    proxies = urllib.request.getproxies()
    place = urlsplit(proxies.get("https") or proxies.get("all") or url)
    answered = threading.Event()

    def connect() -> None:
        try:
            port = place.port or (80 if place.scheme == "http" else 443)
            socket.create_connection((place.hostname or "", port), timeout=SECONDS).close()
        except (OSError, ValueError):
            return
        answered.set()

    # In a thread, since a name lookup can take minutes and cannot be interrupted.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answered.is_set()


@contextmanager
def downloads(url: str | None = None, *, allowed: bool = True) -> Iterator[bool]:
    """Makes downloads from the Hugging Face hub, or from another URL, fail at once if it is unreachable or forbidden.

    The hub's own library would retry for a minute. Yields whether it is reachable.
    """
    offline, patience = constants.HF_HUB_OFFLINE, socket.getdefaulttimeout()
    reached = allowed and not offline and can_connect(url or constants.ENDPOINT)
    if not reached:
        constants.HF_HUB_OFFLINE = True
        socket.setdefaulttimeout(SECONDS)
    try:
        yield reached
    finally:
        constants.HF_HUB_OFFLINE = offline
        socket.setdefaulttimeout(patience)
