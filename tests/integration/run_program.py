# SPDX-License-Identifier: MIT
"""Programs under `pcptune run`, for the tests of it."""
import glob

from harness import *


def runtime_dir():
    return os.environ.get("XDG_RUNTIME_DIR") or "/tmp"


def tuned(*cmd, options=(), json_file=True, private=True, **kw):
    """A program under `pcptune run` with a daemon of its own: the process, and the summary."""
    requires_release()
    d = tmp()
    out = os.path.join(d, "r.json")
    opts = ["--db", os.path.join(d, "log.db")] if private else []
    opts += ["--json", out] if json_file else []
    r = run([PCPTUNE, "run", *opts, *options, "--", *cmd], **kw)
    s = None
    if json_file and os.path.exists(out) and os.path.getsize(out):
        with open(out) as f:
            s = json.load(f)
    assert not glob.glob(os.path.join(runtime_dir(), "pcptune-run-*")), "directory left behind"
    return r, s


def background(*cmd, **kw):
    requires_release()
    d = tmp()
    p = spawn([PCPTUNE, "run", "--db", f"{d}/log.db", "--", *cmd], stdout=subprocess.PIPE,
              stderr=subprocess.PIPE, **kw)
    return p, d


def daemon_of(pid):
    """The private daemon of a run: its child that is called pcptuned."""
    for d in os.listdir("/proc"):
        if d.isdigit():
            try:
                with open(f"/proc/{d}/stat") as f:
                    text = f.read()
            except OSError:
                continue
            if "(pcptuned)" in text and int(text.rsplit(")", 1)[1].split()[1]) == pid:
                return int(d)
    return None


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
