#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The systemd unit: it is well-formed, and leaves the daemon what it needs and no more."""
from foreign_policy import *

UNIT = os.path.join(ROOT, "configs/pcptuned.service.in")


def unit():
    """The values of [Service] by key."""
    values, section = {}, ""
    with open(UNIT) as f:
        for line in f:
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and not line.startswith("#"):
                key, value = line.split("=", 1)
                values[key] = value
    return values


def capabilities():
    return [c.lower().removeprefix("cap_") for c in unit()["CapabilityBoundingSet"].split()]


def confined(caps):
    """A program that runs the daemon with what the unit leaves of root's capabilities."""
    requires("setpriv")
    if os.geteuid() != 0:
        skip("only root has capabilities that a unit could take away")
    path = os.path.join(place(), "pcptuned")
    with open(path, "w") as f:
        f.write("#!/bin/sh\nexec setpriv --no-new-privs --bounding-set=-all" +
                "".join(f",+{c}" for c in caps) + f' {PCPTUNED} "$@"\n')
    os.chmod(path, 0o755)
    return path


def daemon_with(caps, *built, **keys):
    where, d = with_policies(*built, start=False, **keys)
    d.program = confined(caps)
    return where, d.start()


@test
def systemd_finds_nothing_wrong_with_it():
    requires("systemd-analyze")
    path = os.path.join(tmp(), "pcptuned.service")
    with open(UNIT) as f, open(path, "w") as out:
        out.write(f.read().replace("@BINDIR@", os.path.dirname(PCPTUNED)))
    r = run(["systemd-analyze", "verify", "--man=no", path])
    assert r.returncode == 0 and "pcptuned.service" not in r.stderr, r
    r = run(["systemd-analyze", "security", "--offline=true", "--threshold=50", path])
    if "unrecognized option" in r.stderr:
        skip("this systemd can not judge a unit that is not loaded")
    assert r.returncode == 0, r.stdout[-200:]


@test
def what_keeps_it_from_harm_is_there():
    u = unit()
    assert u["NoNewPrivileges"] == "yes"
    assert u["RestrictAddressFamilies"] == "AF_UNIX", "its sockets are of one kind"
    assert u["ProtectSystem"] == "strict" and u["StateDirectory"] and u["RuntimeDirectory"]
    assert not set(capabilities()) & {"sys_admin", "sys_ptrace", "sys_module", "sys_rawio",
                                      "net_admin", "setpcap", "dac_read_search"}


@test
def the_daemon_can_do_all_it_has_to_with_the_capabilities_that_it_leaves():
    """Give its control socket to a group, run foreign policies as nobody, end those that hang."""
    where, d = daemon_with(capabilities(), "good", ("loop", DEEDS["loop"]), control={"group": "daemon"},
                           default={"policy": "good"}, rules=[{"program": "bad", "policy": "loop"}])
    with open(f"/proc/{d.proc.pid}/status") as s:
        text = s.read()
    assert "NoNewPrivs:\t1" in text
    bounding = int(re.search(r"CapBnd:\t(\w+)", text)[1], 16)
    assert bin(bounding).count("1") == len(capabilities()), text
    assert os.stat(d.socket + ".ctl").st_gid == 1
    f = Fake(d, step_ms=5)
    bad = Fake(d, name="bad", step_ms=5)
    d.target("fake", policy="good", policy_state="running")
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    t = d.target("bad", policy_state="benched")
    assert "ms of CPU time" in t["why"], t
    kid = wait_for(lambda: children(d))[0]
    with open(f"/proc/{kid}/status") as s:
        assert "Uid:\t65534\t65534" in s.read()
    end(d, where, f, bad)


@test
def each_of_them_is_needed():
    caps = capabilities()
    for without, said in (("chown", "control.group"), ("setuid", "give up being root"),
                          ("setgid", "give up being root")):
        assert without in caps
        _, d = with_policies("good", start=False, control={"group": "daemon"},
                             default={"policy": "good"})
        r = run([confined([c for c in caps if c != without]), "--foreground", "-c", d.config])
        assert r.returncode != 0 and said in r.stderr, (without, r)


main()
