"""Draws line plots as SVG without scripts, fonts or external resources. Used by bench/figures and bench/load-page."""
import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 320, 64, 16, 40, 48
INK, GRID, COLOURS = "#333", "#ddd", ("#0b6e99", "#c4541d", "#4d8b31", "#7a4fa3")
DASHES = (None, "8 4", "2 4", "8 3 2 3")  # lines that differ by dashes too can be told apart without colours
LEAST = 1e-3  # the smallest value that a decimal logarithmic axis shows


class Axis:
    """Maps the values low..high to the span start..end of the drawing. base: of a logarithmic axis, 2 or 10; None: linear."""

    def __init__(self, start, end, low, high, base=None):
        self.start, self.end, self.base = start, end, base
        self.low, self.high = self.scale(low), self.scale(high)
        if not self.high - self.low > 1e-6:  # a single value
            self.low, self.high = (self.low - 0.5, self.high + 0.5) if base else (self.low, self.low + 1)

    def scale(self, value):
        if self.base == 2:
            return math.log2(value)
        return math.log10(max(value, LEAST)) if self.base else value

    def place(self, value):
        return self.start + (self.end - self.start) * (self.scale(value) - self.low) / (self.high - self.low)

    def ticks(self):
        if self.base == 2:
            return [2 ** i for i in range(int(self.low), int(self.high) + 1)]
        if self.base == 10:
            parts = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            ticks = (part * 10.0 ** i for i in range(math.floor(self.low), math.floor(self.high) + 1) for part in parts)
            return [t for t in ticks if self.low - 1e-9 <= math.log10(t) <= self.high + 1e-9]
        step = 10 ** math.floor(math.log10(self.high))
        while self.high / step < 4:
            step /= 2
        return [i * step for i in range(int(self.high / step) + 1)]


def is_drawn(point):
    return all(value is not None and math.isfinite(value) for value in point)


def path(points, across, up):
    """The path through the points. A point that is not drawn interrupts it; an isolated point is a dot."""
    out, is_down = [], False
    for point in points:
        if is_drawn(point):
            x, y = across.place(point[0]), up.place(point[1])
            out.append(f"L{x:.1f} {y:.1f}" if is_down else f"M{x:.1f} {y:.1f}h0")
        is_down = is_drawn(point)
    return "".join(out)


def svg(title, x_label, y_label, series, base=None, top=None, has_dots=True):
    """series: [(name, [(x, y)], dashes)], in the order of x, of 4 colours in rotation; None and NaN are gaps. The y axis begins at 0, and a linear x
    axis too. base: of the x axis; top: of the y axis, without it from the points. has_dots: at the points of lines without dashes."""
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11" '
           f'fill="{INK}"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="20" font-size="13" font-weight="bold">{html.escape(title)}</text>',
           f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{html.escape(x_label)}</text>',
           f'<text x="12" y="{TOP - 8}">{html.escape(y_label)}</text>']
    drawn = [point for _, points, _ in series for point in points if is_drawn(point)]
    if not drawn:
        return "\n".join([*out, f'<text x="{WIDTH // 2}" y="{HEIGHT // 2}" text-anchor="middle">no data</text>', "</svg>\n"])
    xs = [x for x, _ in drawn]
    across = Axis(LEFT, WIDTH - RIGHT, min(xs) if base else 0, max(xs), base)
    up = Axis(HEIGHT - BOTTOM, TOP, 0, top or 1.08 * max(y for _, y in drawn))
    for y in up.ticks():
        out.append(f'<path d="M{LEFT} {up.place(y):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
                   f'<text x="{LEFT - 6}" y="{up.place(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in across.ticks():
        out.append(f'<text x="{across.place(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for i, (name, points, dashes) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        out.append(f'<path d="{path(points, across, up)}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linecap="round"'
                   + (f' stroke-dasharray="{dashes}"' if dashes else "") + "/>")
        if has_dots and not dashes:
            out += [f'<circle cx="{across.place(x):.1f}" cy="{up.place(y):.1f}" r="2.6" fill="{colour}"/>'
                    for x, y in filter(is_drawn, points)]
        out.append(f'<text x="{LEFT + 12 + 150 * (i % 3)}" y="{TOP + 10 + 14 * (i // 3)}" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join([*out, "</svg>\n"])
