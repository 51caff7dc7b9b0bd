"""What is drawn on the console's canvases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator

# What the page says is drawn a frame later. Browsers warn of a canvas that is read again and again: a copy is.
_COPY = """const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
for (let i = 0; i < 3; i += 1) await frame();
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
copy.drawImage(canvas, 0, 0);"""
_NAMES_PX, _ROW_PX = 110, 22  # of the names beside rows of bars, and of a row


def coloured(canvas: Locator) -> dict[int, int]:
    """Column → the highest pixel in it of the first series' colour, of a chart; only columns that have one."""
    found: list[tuple[int, int]] = canvas.evaluate(
        """async (canvas) => {COPY
          const colour = getComputedStyle(canvas.closest("figure").querySelector("i.series-0")).color;
          const [r, g, b] = colour.match(/\\d+/g).map(Number);
          const { data, width, height } = copy.getImageData(0, 0, canvas.width, canvas.height);
          const found = [];
          for (let x = 0; x < width; x += 1) {
            for (let y = 0; y < height; y += 1) {
              const i = 4 * (y * width + x);
              if (data[i] !== r || data[i + 1] !== g || data[i + 2] !== b) continue;
              found.push([x, y]);
              break;
            }
          }
          return found;
        }""".replace("COPY", _COPY)
    )
    return dict(found)


def shade_at(canvas: Locator, row: int, part: float) -> int:
    """How opaque a row of bars is at a part of its width: 0 for nothing, 255 at most."""
    shade: int = canvas.evaluate(
        """async (canvas, [row, part, names, height]) => {COPY
          const sharp = devicePixelRatio;
          const x = (names + part * (canvas.clientWidth - names - 2)) * sharp;
          return copy.getImageData(x, (row + 0.5) * height * sharp, 1, 1).data[3];
        }""".replace("COPY", _COPY),
        [row, part, _NAMES_PX, _ROW_PX],
    )
    return shade
