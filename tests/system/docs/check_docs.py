#!/usr/bin/env python3
"""Checks what documentation says against what there is.

  check_docs.py ROOT ENGINE   links and anchors lead somewhere; the engine knows every flag in a command; names of files
                              in the source tree exist
"""
import pathlib
import re
import subprocess
import sys

MOST_WORDS = 15000
FOLDERS = "app|bench|cmake|configs|core|docs|interfaces|plugins|scripts|tests|tools"


def pages_of(root):
    folders = [page for folder in FOLDERS.split("|") for page in sorted((root / folder).glob("**/*.md"))]
    return [root / "README.md", root / "CONTRIBUTING.md"] + folders


def anchors_of(text):
    """The names that GitHub gives headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_links(page, text):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text):
        path = (page.parent / target) if target else page
        if not path.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and anchor not in anchors_of(path.read_text()):
            yield f"links to {target}#{anchor}: no such heading"


def wrong_paths(root, page, text):
    """`core/exec/order.h`, headers of the SDK (`kit/lanes.h`), and of a folder's README `order.h`; not patterns."""
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./-]*\w/?)`", text)
    paths += re.findall(r"`((?:engine|kit)/[\w/]+\.h)`", text)
    if page.name == "README.md":
        paths += re.findall(r"`([\w/]+\.(?:h|cc|proto|py|pbtxt))`", text)
    generated = (root / "interfaces/CMakeLists.txt").read_text()  # names the headers that the build makes
    for path in paths:
        candidates = [folder / (path + end) for folder in (root, page.parent, root / "interfaces")
                      for end in ("", ".h", ".cc")]
        if not any(candidate.exists() for candidate in candidates) and f'/{path}"' not in generated:
            yield f"names {path}, which does not exist"


def commands_of(text):
    """Lines of blocks that begin with `engine`, joined where they end with a backslash."""
    text = text.replace("\\\n", " ")
    return re.findall(r"^ *(?:sudo )?(engine (?:[a-z]+).*)$", text, re.M)


class Help:
    def __init__(self, engine):
        self.engine, self.texts = engine, {}

    def text(self, words):
        if words not in self.texts:
            run = subprocess.run([self.engine, *words, "--help"], capture_output=True, text=True, timeout=60)
            self.texts[words] = run.stdout if run.returncode == 0 else None
        return self.texts[words]

    def wrong_flags(self, command):
        command = command.split("   ")[0].split(" #")[0]  # what follows is a remark
        words = [word.strip("[]") for word in command.split()[1:]]
        two = len(words) > 1 and (words[0] in ("bench", "config", "trace") or words[:2] == ["plugins", "new"])
        name = tuple(words[:2] if two else words[:1])
        text = self.text(name)
        if text is None:
            return [f"`{command}`: there is no command {' '.join(name)}"]
        flags = [word.split("=")[0].rstrip(",.") for word in words if re.match(r"--?[a-z]", word)]
        return [f"`{command}`: {' '.join(name)} has no flag {flag}"
                for flag in flags if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text)]


def check_pages(root, engine):
    wrong, words, help_of = [], 0, Help(engine)
    for page in pages_of(root):
        text = page.read_text()
        words += len(text.split()) if page.parent.name == "docs" else 0
        found = list(wrong_links(page, text)) + list(wrong_paths(root, page, text))
        for command in commands_of(text):
            found += help_of.wrong_flags(command)
        wrong += [f"{page.relative_to(root)}: {sentence}" for sentence in found]
    if words > MOST_WORDS:
        wrong.append(f"docs: {words} words; at most {MOST_WORDS}: say it shorter, or where the code is")
    return wrong


def main():
    wrong = check_pages(pathlib.Path(sys.argv[1]), sys.argv[2])
    print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
