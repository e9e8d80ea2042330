#!/usr/bin/env python3
"""same_tensors.py CHECKPOINT...: the tensors of all of them are those of the first, to the bit."""
import json
import struct
import sys


def tensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:8 + size])
    entries.pop("__metadata__")
    content = data[8 + size:]
    return {name: content[slice(*entry["data_offsets"])] for name, entry in entries.items()}


first, *others = sys.argv[1:]
expected = tensors(first)
if not others or not any("momentum" in name for name in expected):
    sys.exit("nothing to compare")
for other in others:
    found = tensors(other)
    wrong = sorted(name for name in expected | found if found.get(name) != expected.get(name))
    if wrong:
        sys.exit(f"{other} differs from {first} in {', '.join(wrong)}")
    print(f"{other}: {len(expected)} tensors as in {first}")
