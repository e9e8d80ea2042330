#!/usr/bin/env python3
"""Who uses std::move includes <utility>: names of the standard library whose header neither a file nor its own header
includes. And sources whose first include is not their own header: so every build sees that it compiles alone.
   scripts/check_includes.py [--fix] FILE...      --fix adds the lines; run clang-format afterwards"""
import pathlib
import re
import sys

HEADERS = {  # header: what is looked for in its place (other headers do not stand for it)
    "array": r"array<", "atomic": r"atomic(_|<)", "chrono": r"chrono::", "condition_variable": r"condition_variable\b",
    "deque": r"deque<", "filesystem": r"filesystem::", "functional": r"function<", "map": r"(multi)?map<",
    "memory": r"(unique_ptr|shared_ptr|make_unique|make_shared)<", "mutex": r"(mutex|lock_guard|unique_lock|scoped_lock)\b",
    "optional": r"(optional<|nullopt\b)", "set": r"(multi)?set<", "span": r"span<", "string": r"(string|to_string)\b",
    "string_view": r"string_view\b", "thread": r"(thread\b|this_thread::)", "unordered_map": r"unordered_map<",
    "utility": r"(move|forward|exchange|swap|pair)\b[(<]", "vector": r"vector<",
    "algorithm": r"(min|max|clamp|sort|find_if|any_of|all_of|none_of|fill|fill_n|copy|copy_n)\(",
}


def included(path):
    text = path.read_text() if path.exists() else ""
    return set(re.findall(r"^#include <([\w/.]+)>", text, re.M))


def missing(path):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    known = included(path)
    if path.suffix == ".cc":
        known |= included(path.with_suffix(".h"))
    return [header for header, names in HEADERS.items()
            if header not in known and re.search(rf"\bstd::{names}", text)]


def add(path, headers):
    lines = path.read_text().split("\n")
    first = [i for i, line in enumerate(lines) if line.startswith("#include <")]
    first = first or [i for i, line in enumerate(lines) if line.startswith(("#include", "#pragma once"))]
    # Into the last block of <...>, which clang-format sorts; without one, a block of its own.
    at = first[-1] + 1
    new = [f"#include <{header}>" for header in headers]
    if not lines[first[-1]].startswith("#include <"):
        new = [""] + new
    path.write_text("\n".join(lines[:at] + new + lines[at:]))


def main():
    fix = "--fix" in sys.argv
    found = 0
    for name in (name for name in sys.argv[1:] if name != "--fix"):
        path = pathlib.Path(name)
        headers = missing(path)
        own = path.with_suffix(".h")
        if path.suffix == ".cc" and own.exists() and not re.match(rf'[^#]*#include "([\w/]+/)?{own.name}"', path.read_text()):
            print(f"{path}: does not include {own.name} before all else")
            found += 1
        if headers and fix:
            add(path, headers)
        elif headers:
            print(f"{path}: uses names of <{'>, <'.join(headers)}> and does not include them")
        found += bool(headers)
    return 1 if found and not fix else 0


if __name__ == "__main__":
    sys.exit(main())
