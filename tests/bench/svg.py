"""Draw pictures: text and shapes with classes, in colours for light and for dark ground, no script."""

from html import escape

STYLE = """
svg { font: 13px system-ui, sans-serif; }
.ground { fill: #ffffff; } .text { fill: #1f2328; } .faint { fill: #59636e; } .axis { stroke: #d1d9e0; }
.title { font-weight: 600; font-size: 15px; } .small { font-size: 12px; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; } .text { fill: #f0f6fc; } .faint { fill: #9198a1; } .axis { stroke: #3d444d; }
}
"""


def picture(width: int, height: float, label: str, style: str, parts: list[str]) -> str:
    """Return one SVG with its background; ``style`` is added to ``STYLE``."""
    size = f'viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
    ground = f'<rect class="ground" width="{width}" height="{height:g}"/>'
    return "\n".join([opening, f"<style>{STYLE}{style}</style>", ground, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Return text at its baseline."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
