"""Read the numbers of a report page: tiles by their name, tables by their caption, rows by their first cell."""

from html.parser import HTMLParser


class PageReader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tiles: dict[str, str] = {}
        self.tables: dict[str, list[dict[str, str]]] = {}
        self.pictures: list[dict[str, str | None]] = []
        self.names: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self._words: dict[str, str] = {}
        self._heads: list[str] = []
        self._row: list[str] = []
        self._tile = self._caption = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag in ("meta", "wbr"):
            return
        self._open.append(tag)
        self._words[tag] = ""
        if tag == "svg":
            self.pictures.append(dict(attrs))
        elif tag == "table":
            self._heads = []
        elif tag == "tr":
            self._row = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data
        for tag in ("dt", "dd", "small", "caption", "th", "td"):
            if tag in self._open and not (tag == "dd" and "small" in self._open):
                self._words[tag] += data

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        words = self._words.get(tag, "").strip()
        if tag == "dt":
            self._tile = words
        elif tag == "dd":
            self.tiles[self._tile] = words
        elif tag == "caption":
            self._caption = words
            self.tables[words] = []
        elif tag in ("th", "td"):
            (self._heads if "thead" in self._open else self._row).append(words)
        elif tag == "tr" and "tbody" in self._open:
            self.tables[self._caption].append(dict(zip(self._heads, self._row, strict=True)))
