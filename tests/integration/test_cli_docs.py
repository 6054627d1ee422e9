#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The table of commands against everything that is written about it, and wrong command lines."""
import glob

from harness import *
from cli_fake import Fake

_commands = None


def commands():
    """{command: {option: (letter, takes a value)}} as the program has it."""
    global _commands
    if _commands is None:
        r = run([PCPTUNE, "help", "--json"])
        assert r.returncode == 0, r
        _commands = {c["name"]: {o["name"]: (o["letter"], bool(o.get("arg"))) for o in c["options"]}
                     for c in json.loads(r.stdout)["commands"]}
    return _commands


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


@test
def the_man_page_names_every_command_and_option_and_no_other():
    text = read("docs/pcptune.1").split(".Sh COMMANDS")[1].split("\n.Sh ")[0]
    found, options = {}, None
    for line in text.splitlines():
        if m := re.match(r"\.It Cm (\S+)", line):
            options = found.setdefault(m[1], {})
        elif m := re.match(r"\.It (?:Fl (\S) , )?Fl \\-(\S+)(.*)", line):
            options[m[2]] = (m[1] or "", " Ar " in m[3])
        elif line.startswith(".It") and not line.startswith(".It Sy "):  # a key, a word
            raise AssertionError(f"neither a command nor an option: {line}")
    assert list(found) == list(commands()), (list(found), list(commands()))
    for name, has in commands().items():
        assert found[name] == has, f"{name}: man page {found[name]}, program {has}"


@test
def every_generation_of_the_rules_is_named():
    r = run([PCPTUNE, "set", "x", "rules=none"])
    known = re.search("not one of (.*)", r.stderr)[1].split(", ")
    assert r.returncode == 2 and known[:3] == ["g0", "g1", "g2"], r
    text = read("docs/pcptune.1")
    assert f"rules ({', '.join(known)})" in run([PCPTUNE, "set", "--help"]).stdout
    assert all(f".Cm {g}\n" in text for g in known), known


@test
def the_man_pages_are_clean():
    requires("mandoc")
    pages = sorted(glob.glob(os.path.join(ROOT, "docs/*.[1-8]")))
    assert len(pages) == 4, pages
    for page in pages:
        r = run(["mandoc", "-Tlint", "-W", "warning", page])
        assert r.returncode == 0 and not r.stdout, r.stdout


@test
def the_man_pages_read_well_as_text():
    requires("groff")
    for page in sorted(glob.glob(os.path.join(ROOT, "docs/*.[1-8]"))):
        r = run(["groff", "-mandoc", "-Tutf8", "-P-cbou", page])
        assert r.returncode == 0 and not r.stderr, r
        assert "BSD" not in r.stdout, "a name that groff puts there"
        for wrong in ("\u2018\u2018", "\u2019\u2019", "((", "))"):
            assert wrong not in r.stdout, (page, wrong, r.stdout.split(wrong)[0][-80:])


@test
def the_library_page_has_every_function_of_the_header():
    declared = set(re.findall(r"\b(pcpa_\w+)\(", "\n".join(
        l for l in read("include/pcpalloc.h").splitlines() if l.startswith("PCPA_API"))))
    declared |= set(re.findall(r"\b(pcpa_\w+_inline)\(", read("include/pcpalloc_inline.h")))
    page = read("docs/pcpalloc.3")
    assert declared == set(re.findall(r"^\.Nm (pcpa_\w+)", page, re.M)), declared
    assert declared == set(re.findall(r"^\.Fn (pcpa_\w+)", page.split(".Sh DESCRIPTION")[0], re.M))
    known = set(re.findall(r"^ \*   (PCP\w+)=", read("include/pcpalloc.h"), re.M))
    listed = set(re.findall(r"PCP[AT]\w+", page.split(".Sh ENVIRONMENT")[1].split(".Sh ")[0]))
    assert known | {"PCPALLOC_BATCH", "PCPALLOC_MIN_SIZE", "PCPALLOC_MAX_SIZE"} == listed, (known, listed)


@test
def the_example_of_the_library_page_runs():
    requires("cc")
    if VARIANT != "release":
        skip("another runtime would be needed")
    page = read("docs/pcpalloc.3").split(".Sh EXAMPLES")[1].split(".Sh ")[0]
    d = tmp()
    with open(os.path.join(d, "x.c"), "w") as f:
        f.write(re.search(r"^\.Bd .*?\n(.*?)^\.Ed", page, re.M | re.S)[1])
    r = run(["cc", "-Wall", "-Werror", "-I", os.path.join(ROOT, "include"), f"{d}/x.c", "-o",
             f"{d}/x", "-L", os.path.join(B, "lib"), "-lpcpalloc",
             f"-Wl,-rpath,{os.path.join(B, 'lib')}"])
    assert r.returncode == 0, r
    assert run([f"{d}/x"], env={"PCPTUNE_SOCKET": ""}).returncode == 0


@test
def the_completion_file_is_what_the_program_prints():
    r = run([PCPTUNE, "help", "--completion"])
    assert r.stdout == read("configs/completion.bash"), \
        "run: pcptune help --completion > configs/completion.bash"


def complete(*words, socket=""):
    script = (f". {ROOT}/configs/completion.bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($#-1)); "
              "_pcptune; printf '%s\\n' \"${COMPREPLY[@]}\"")
    r = run(["bash", "-c", script, "x", "pcptune", *words],
            env={"PATH": os.path.join(B, "bin") + ":" + os.environ["PATH"],
                 "PCPTUNE_POLICY_PATH": POLICIES, "PCPTUNE_SOCKET": socket or tmp() + "/none"})
    assert r.returncode == 0 and not r.stderr, r
    return r.stdout.split()


@test
def bash_completes_commands_options_and_values():
    assert complete("") == [*commands(), "--help", "--version"]
    assert complete("exp") == ["explain"]
    for name, has in commands().items():
        assert complete(name, "--") == ["--" + o for o in has] + ["--help"], name
    d = tmp()
    open(os.path.join(d, "log.db"), "w").close()
    assert complete("log", "--db", d + "/l") == [d + "/log.db"]
    assert complete("log", "--cpu", "") == [], "a number is not completed"
    assert complete("help", "tar") == ["targets"]
    assert complete("set", "x", "high_") == ["high_min=", "high_max="]


@test
def bash_completes_targets_and_policies():
    f = Fake(targets={"targets": [{"id": 1, "name": "web"}, {"id": 2, "name": "sqlite3"}]})
    for name in ("status", "set", "unset", "advise", "policy", "counters", "record"):
        assert complete(name, "w", socket=f.socket) == ["web"], name
    assert complete("status", "") == [], "no daemon, no words, no message"
    assert "env" in complete("record", "--", "env"), "a program is to be started"
    assert complete("policy", "web", "st", socket=f.socket) == ["static"]
    assert complete("policies", "con") == complete("log", "-p", "con") == ["contention"]
    assert complete("run", "--policy", "") == ["coldest", "contention", "fraction", "kernel", "knee",
                                               "learn", "lowwater", "shuffle", "static"]


@test
def the_counters_page_is_what_the_program_prints():
    r = run([PCPTUNE, "counters", "--markdown"])
    assert r.stdout == read("docs/counters.md"), \
        "run: pcptune counters --markdown > docs/counters.md"


@test
def the_generations_page_is_what_the_program_prints():
    r = run([PCPTUNE, "policies", "--generations", "--markdown"])
    assert r.returncode == 0 and r.stdout == read("docs/generations.md"), \
        "run: pcptune policies --generations --markdown > docs/generations.md"


@test
def every_generation_is_listed_and_can_be_chosen():
    rows = json.loads(run([PCPTUNE, "policies", "-g", "--json"]).stdout)["generations"]
    known = re.search("not one of (.*)", run([PCPTUNE, "set", "x", "rules=none"]).stderr)[1]
    names = [g["name"] for g in rows]
    assert sorted(names) == sorted(known.split(", ")) and len(set(names)) == len(names) == 17
    assert all(g["from"] and g["changed"] and g["parameters"] for g in rows)
    text = run([PCPTUNE, "policies", "--generations"]).stdout
    assert all(re.search(rf"^{g}[, ]", text, re.M) for g in names)
    for policy, lacks in (("static", set()), ("kernel", {"gx"})):
        p = json.loads(run([PCPTUNE, "policies", policy, "--json"]).stdout)["params"]
        assert set(names) - set(next(x for x in p if x["name"] == "rules")["choices"]) == lacks
    for g in rows:  # a switch is the opposite of what the row has
        assert g["switched"] == g["name"] + ("-order0" if "orders" in g["traits"] else "-orders")
    for words in (["-m"], ["-g", "static"]):
        assert run([PCPTUNE, "policies", *words]).returncode == 2


@test
def every_counter_is_explained_once():
    names = re.findall(r"^PCPTUNE_(?!LIST\(field)\w+\((\w+), \"", read("include/pcptune/counters.def"),
                       re.M)
    assert len(names) > 40 and len(set(names)) == len(names) - 1, "free_pages: of a CPU, of a zone"
    j = json.loads(run([PCPTUNE, "counters", "--json"]).stdout)["counters"]
    assert [c["name"] for c in j] and sorted(c["name"] for c in j) == sorted(names)
    assert all(c["unit"] and c["line"] and c["level"] and c["kind"] for c in j)
    page = read("docs/counters.md")
    assert all(page.count(f"| `{n}` |") == names.count(n) for n in names)


@test
def every_setting_of_the_allocator_is_in_its_manual():
    rows = re.findall(r"^PCPTUNE_SETTING\((\w+), (\w+), .*?\"(.*?)\"", read("include/pcptune/settings.def"),
                      re.M)
    assert len(rows) > 12, rows
    manual = read("docs/pcpalloc.3")
    environment = manual[manual.index(".Sh ENVIRONMENT"):manual.index(".Sh EXAMPLES")]
    named = re.findall(r"PCPALLOC_\w+", " ".join(re.findall(r"^\.It Ev (.*)", environment, re.M)))
    assert sorted(named) == sorted("PCPALLOC_" + name for name, _, _ in rows)
    for name, kind, words in rows:
        if kind == "WORD":
            assert all(w in environment for w in words.split()), (name, words)


@test
def help_of_every_command_shows_its_options():
    for name, has in commands().items():
        texts = [run([PCPTUNE, *w]) for w in ((name, "--help"), (name, "-h"), ("help", name))]
        assert all(t.returncode == 0 and t.stdout == texts[0].stdout and not t.stderr
                   for t in texts), name
        for option, (letter, _) in has.items():
            assert f"--{option}" in texts[0].stdout, (name, option)
            assert not letter or f"-{letter}, --{option}" in texts[0].stdout, (name, option)
        assert name in run([PCPTUNE, "help"]).stdout


@test
def a_wrong_option_of_any_command_is_refused_with_the_nearest():
    for name, has in commands().items():
        for option in has:
            wrong = option + "x" if len(option) < 5 else option[:-2] + option[-1]
            if wrong in has or len(option) < 4:
                continue
            r = run([PCPTUNE, name, "--" + wrong])
            assert r.returncode == 2 and r.stdout == "", (name, wrong, r)
            near = [o for o in has if o.startswith(option) or option.startswith(o)]  # seed, seeds
            assert any(f"no option --{wrong}; did you mean --{o}?" in r.stderr for o in near), \
                (name, wrong, r)
        r = run([PCPTUNE, name, "--zzzzzzzz"])
        assert r.returncode == 2 and "no option --zzzzzzzz" in r.stderr, r
        r = run([PCPTUNE, name, "-Z"])
        assert r.returncode == 2 and "no option -Z" in r.stderr, r


@test
def a_value_that_is_missing_or_too_much_is_refused():
    for name, has in commands().items():
        for option, (_, takes) in has.items():
            if not takes:
                r = run([PCPTUNE, name, f"--{option}=1"])
                assert r.returncode == 2 and f"--{option} takes no value" in r.stderr, r
            elif option != "watch":
                r = run([PCPTUNE, name, f"--{option}"])
                assert r.returncode == 2 and f"--{option} needs a value" in r.stderr, r


@test
def a_wrong_command_is_refused_with_the_nearest():
    for wrong, near in (("stauts", "status"), ("explian", "explain"), ("verifi", "verify")):
        r = run([PCPTUNE, wrong])
        assert r.returncode == 2 and r.stdout == "", r
        assert f'no command "{wrong}"; did you mean "{near}"?' in r.stderr, r
        assert run([PCPTUNE, "help", wrong]).returncode == 2
    r = run([PCPTUNE, "xyzzyplugh"])
    assert r.returncode == 2 and "did you mean" not in r.stderr, r
    r = run([PCPTUNE])
    assert r.returncode == 2 and "usage: pcptune COMMAND" in r.stderr and not r.stdout, r
    assert run([PCPTUNE, "version", "word"]).returncode == 2
    assert run([PCPTUNE, "explain"]).returncode == 2


@test
def output_that_can_not_be_written_is_an_error():
    with open("/dev/full", "w") as full:
        p = subprocess.run([PCPTUNE, "counters"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1 and "No space left" in p.stderr, p


@test
def a_closed_pipe_ends_quietly():
    r = run(["sh", "-c", f"{PCPTUNE} counters --markdown | head -1"],
            preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
    assert r.returncode == 0 and r.stdout == "# Counters\n" and r.stderr == "", r


@test
def pkg_config_files_say_where_things_are():
    requires("pkg-config")
    d = tmp()
    at = {"PREFIX": "/opt/p", "LIBDIR": "/opt/p/lib64", "INCDIR": "/opt/p/inc", "VERSION": "1.2.3"}
    for name in ("pcpalloc", "pcptune"):
        text = read(f"configs/{name}.pc.in")
        for k, v in at.items():
            assert f"@{k}@" in text
            text = text.replace(f"@{k}@", v)
        with open(os.path.join(d, name + ".pc"), "w") as f:
            f.write(text)

    def ask(*words):
        r = run(["pkg-config", *words], env={"PKG_CONFIG_PATH": d})
        assert r.returncode == 0, r
        return r.stdout.strip()
    assert ask("--modversion", "pcpalloc") == "1.2.3"
    assert ask("--libs", "pcpalloc") == "-L/opt/p/lib64 -lpcpalloc"
    assert ask("--cflags", "pcptune") == "-I/opt/p/inc"
    assert ask("--variable=policydir", "pcptune") == "/opt/p/lib64/pcptune/policies"


@test
def every_test_that_the_page_of_faults_names_is_there():
    with open(os.path.join(ROOT, "docs/faults.md")) as f:
        named = re.findall(r"`(\w+): (\w+)`", f.read())
    assert len(named) > 80, len(named)
    for file, name in named:
        if os.path.exists(path := os.path.join(ROOT, f"tests/integration/test_{file}.py")):
            here = rf"^@test\ndef {name}\("
        else:
            path, here = os.path.join(ROOT, f"tests/unit/test_{file}.c"), rf"cmocka_unit_test\((test_)?{name}\)"
        with open(path) as f:
            assert re.search(here, f.read(), re.M), (file, name)


main()
