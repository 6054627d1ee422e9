# SPDX-License-Identifier: MIT
"""A control socket without a daemon behind it, for tests of what the CLI says to each answer."""
import json
import os
import socket
import threading

from harness import defer, tmp


def cpu(n, **values):
    row = {"cpu": n, "count": 10 + n, "high": 378, "high_min": 63, "high_max": 3780, "batch": 63,
           "scale_max": 5, "rules": "g4", "alloc_pages": 2000000, "free_pages": 1999000,
           "alloc_zone": 1234567 + n, "free_zone": 1234000, "refills": 100, "drains": 90,
           "free_high": 3, "contend_pct": 2.5, "pinned": False, "waiting": False,
           "drift": False}
    row.update(values)
    return row


def target(n, name, cpus, **values):
    t = {"id": n, "name": name, "pid": 4000 + n, "uid": 1000, "tag": "0" * 16, "mode": "locked",
         "policy": "contention", "policy_state": "running", "why": "default", "dry_run": False,
         "attached_s": 12.5, "cpu_us": 900000, "contend_pct": 2.25, "held_pages": 256,
         "decisions": 7,
         "zones": [{"id": 0, "node": 0, "managed_pages": 1 << 20, "free_pages": 1 << 19,
                    "low_wmark_pages": 1000, "hold_p50_ns": 511, "hold_p99_ns": 2047,
                    "hold_max_ns": 13107, "cpus": cpus}]}
    t.update(values)
    return t


DAEMON = {"version": "0.1.0", "pid": 77, "uptime_s": 60.0, "socket": "/s", "config": "",
          "interval_ms": 100, "dry_run": False, "n_targets": 1,
          "log": {"enabled": True, "path": "", "state": "ok", "lost_samples": 0,
                  "lost_decisions": 0, "error": ""}}


class Fake:
    """Answers by self.answers[cmd]: a result, or a function of the request; keeps requests."""

    def __init__(self, **answers):
        self.socket = os.path.join(tmp(), "sock")
        self.answers = {"version": DAEMON, **answers}
        self.requests = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.socket + ".ctl")
        self.server.listen(8)
        self.open = True
        self.clients = []
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()
        defer(self.close)

    def close(self):
        if not self.open:
            return
        self.open = False
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for c in self.clients:
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.thread.join(5)
        os.unlink(self.socket + ".ctl")

    def _accept(self):
        while self.open:
            try:
                c, _ = self.server.accept()
            except OSError:
                return
            self.clients.append(c)
            threading.Thread(target=self._serve, args=(c,), daemon=True).start()

    def _serve(self, c):
        with c, c.makefile("r") as lines:
            try:
                for line in lines:
                    c.sendall(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
            except OSError:
                pass

    def _answer(self, request):
        self.requests.append(request)
        a = self.answers.get(request["cmd"])
        if callable(a):
            a = a(request)
        if a is None:
            return {"ok": False, "code": "invalid", "error": f"no answer to {request}"}
        return a if "ok" in a else {"ok": True, "result": a}


def refuse(code, error):
    return {"ok": False, "code": code, "error": error}
