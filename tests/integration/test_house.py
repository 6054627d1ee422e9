#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tree against what is written about it: names of files and folders, the map, the form of files."""
from harness import *

WRITTEN = (".md", ".c", ".h", ".def", ".py", ".pml")
# names in examples of what somebody else would have, and files of the kernel
EXAMPLES = {"program.c", "mm/page_alloc.c", "mine/mine.c"}
FUNCTION_LINES = 60


def tree():
    """Every file of the sources, by its path below ROOT."""
    for at, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in ("build", "__pycache__") and f[0] != "."]
        for f in files:
            yield os.path.relpath(os.path.join(at, f), ROOT)


FILES = set(tree())
FOLDERS = {os.path.dirname(f)[:n] for f in FILES for n in range(1, 200)} & \
    {os.path.relpath(at, ROOT) for at, _, _ in os.walk(ROOT)}
TOP = {f.split("/")[0] for f in FOLDERS}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def prose(path):
    """What is written for people in a file: all of a page, the comments of a source."""
    text = read(path)
    if path.endswith((".c", ".h", ".def", ".pml")):
        return "\n".join(re.findall(r"/\*.*?\*/", text, re.S))
    if path.endswith(".py"):
        return "\n".join(re.findall(r'^"""(.*?)"""', text, re.S | re.M)[:1] + re.findall(r"# .*", text))
    return text


def there(name, beside):
    """Does it exist, beside that file, or where names are said without their folder?"""
    if "/" not in name:
        return any(f.rsplit("/", 1)[-1] == name for f in FILES)
    if any(os.path.normpath(os.path.join(at, name)) in FILES | FOLDERS
           for at in ("", "include", "docs", os.path.dirname(beside))):
        return True
    if any(f.startswith((name + ".", name + "_", name + "-")) for f in FILES):  # a part of several files
        return True
    return name in read("Makefile")  # built, or installed


@test
def every_file_that_is_named_exists():
    source = r"(?<![\w./$-])((?:[\w.-]+/)*[A-Za-z][\w-]*\.(?:c|h|def|py|pml|md))(?![\w(.])"
    below = r"(?<![\w./<>-])((?:" + "|".join(sorted(TOP)) + r")/[\w./-]*\w)(?![\w*<{%])"
    named = 0
    for path in sorted(f for f in FILES if f.endswith(WRITTEN)):
        text = prose(path)
        for name in set(re.findall(source, text)) | set(re.findall(below, text)):
            named += 1
            assert name in EXAMPLES or re.search(r"\b(NAME|ID)\b", name) or there(name, path), f"{path} names {name}"
    assert named > 300, named


@test
def the_map_of_the_house_has_every_room():
    house = re.search(r"## The house\n\n(.*?)\n\n[^ ]", read("docs/design.md"), re.S)[1]
    rooms = set(re.findall(r"(?:^|  )([a-z]+)/ ", house, re.M))
    assert rooms == TOP, rooms ^ TOP


@test
def the_contents_of_the_design_are_its_headings():
    text = read("docs/design.md")
    contents, body = text[:text.index("\n## ")], text[text.index("\n## "):]
    heads = [h.replace("`", "") for h in re.findall(r"^##+ (.*)$", body, re.M)]
    assert re.findall(r"\[(.*?)\]\(#", contents) == heads, heads
    for name, to in re.findall(r"\[(.*?)\]\(#(.*?)\)", contents):
        assert to == re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-"), (name, to)


@test
def comments_of_sources_end_at_column_100():
    for path in sorted(f for f in FILES if f.endswith((".c", ".h"))):
        for n, line in enumerate(read(path).splitlines(), 1):
            assert len(line.expandtabs(8)) <= 100 or '"' in line, f"{path}:{n}"


@test
def arrows_run_one_way():
    """What each folder includes of the others; what is installed is open to all."""
    may = {"allocator": set(), "lib": set(), "policies": {"lib"}, "eval": {"policies", "lib"},
           "daemon": {"policies", "lib"}, "cli": {"eval", "policies", "lib"}}
    for path in sorted(f for f in FILES if f.endswith((".c", ".h")) and f.split("/")[0] in may):
        own = path.split("/")[0]
        for other in re.findall(r'^#include "([a-z]+)/', read(path), re.M):
            assert other == own or other in may[own], f"{path} includes {other}/"


@test
def every_source_begins_with_its_licence_and_its_idea():
    for path in sorted(f for f in FILES if f.endswith((".c", ".h")) and not f.startswith("examples/")):
        assert re.match(r"/\* SPDX-License-Identifier: MIT \*/\n/\*", read(path)), path


@test
def no_function_is_longer_than_a_page():
    seen = 0
    for path in sorted(f for f in FILES if f.endswith((".c", ".h"))):
        for body in re.findall(r"^\{\n(.*?)^\}$", read(path), re.S | re.M):
            seen += 1
            assert body.count("\n") <= FUNCTION_LINES, f"{path}: {body.splitlines()[0].strip()} ..."
    assert seen > 3000, seen


main()
