"""The closing table of a benchmark, in Markdown: one line for each kind of work."""
from __future__ import annotations


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str, str]] = []

    def add(self, work: str, ours: str, beside: str, goal: str = "", met: bool | None = None) -> None:
        self.rows.append((work, ours, beside, goal, "" if met is None else "yes" if met else "no"))

    def show(self) -> None:
        print("\n| work | muster | beside | goal | met |\n| --- | --- | --- | --- | --- |")
        for row in self.rows:
            print(f"| {' | '.join(row)} |", flush=True)
