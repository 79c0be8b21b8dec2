"""Deal cells out to the threads that run them: a shape's first engine compiles kernels for the others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fleet.matrix import Cell

__all__ = ["Turns"]


class Turns:
    """A queue of cells, of which no second one of a shape starts before the first one of it has ended.

    Engines that boot side by side compile the same kernels each for itself: nine that began with the gated
    delta nets of one shape took 150 s each, and 20 to 40 s later on.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        """Take the cells in the order in which they are to start."""
        self._left = list(cells)
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def take(self) -> Cell | None:
        """Return the next cell that may start, after waiting for it; None when there is none left."""
        with self._changed:
            while self._left:
                for cell in self._left:
                    if cell.shape not in self._begun or cell.shape in self._ended:
                        self._left.remove(cell)
                        self._begun.add(cell.shape)
                        return cell
                self._changed.wait()
            return None

    def end(self, cell: Cell) -> None:
        """Let other cells of this cell's shape start."""
        with self._changed:
            self._ended.add(cell.shape)
            self._changed.notify_all()

    def work(self, run: Callable[[Cell], bool]) -> list[bool]:
        """Run cells until none is left; return what *run* said of each.

        Raises:
            Exception: the first one that *run* raised, after all other cells.
        """
        found, wrong = [], []
        while (cell := self.take()) is not None:
            try:
                found.append(run(cell))
            except Exception as error:  # noqa: BLE001 - one cell's error must not cost the others their thread
                wrong.append(error)
            finally:
                self.end(cell)
        if wrong:
            raise wrong[0]
        return found
