"""The pages that are rendered, as tests read them: elements, and words with what they stand in."""

from html.parser import HTMLParser

# Elements without an end, and marks of drawings that a page may leave open.
VOID = {"br", "hr", "img", "input", "link", "meta", "rect"}


class PageReader(HTMLParser):
    """A page whose elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self._said: list[tuple[list[tuple[str, dict[str, str]]], str]] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self._said.append((list(self._open), " ".join(data.split())))

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of each element of this kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """All words but those of style sheets."""
        return " ".join(said for around, said in self._said if "style" not in _names(around))

    @property
    def shown(self) -> str:
        """The words that show while everything that is folded stays so, but those of drawings."""
        return " ".join(said for around, said in self._said if _shows(around))


def _names(around: list[tuple[str, dict[str, str]]]) -> set[str]:
    return {tag for tag, _ in around}


def _shows(around: list[tuple[str, dict[str, str]]]) -> bool:
    folded = sum(tag == "details" and "open" not in attributes for tag, attributes in around)
    names = _names(around)
    return not {"style", "svg"} & names and (not folded or (folded == 1 and "summary" in names))
