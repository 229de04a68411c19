"""Ports for servers that have to know theirs before they start."""

import random
import socket


def free(n):
    """n ports of loopback that nobody listens on. They lie below those that systems give to outgoing connections and to port 0, so that
    nobody else takes one in between by accident."""
    found = []
    for port in random.sample(range(10240, 32768), 1000):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == n:
            return found
    raise RuntimeError("no free port on loopback")
