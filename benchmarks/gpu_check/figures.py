"""Owns what the check found and how it is shown. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """One finding."""

    step: str
    what: str
    value: float | str
    unit: str = ""
    passed: bool | None = None
    """None: told, not judged."""


@dataclass(slots=True)
class Report:
    """All findings of a run."""

    machine: dict[str, str]
    figures: list[Figure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(
        self, step: str, what: str, value: float | str, unit: str = "", *, passed: bool | None = None
    ) -> None:
        """Keep a finding."""
        self.figures.append(Figure(step, what, value, unit, passed))

    @property
    def passed(self) -> bool:
        """Whether nothing that is judged failed."""
        return all(figure.passed is not False for figure in self.figures)

    def json(self) -> str:
        """Return everything, for machines."""
        rows = [
            {"step": f.step, "what": f.what, "value": f.value, "unit": f.unit, "passed": f.passed}
            for f in self.figures
        ]
        whole = {"machine": self.machine, "passed": self.passed, "figures": rows, "left_out": self.left_out}
        return json.dumps(whole, indent=1) + "\n"

    def table(self) -> str:
        """Return everything, for people: Markdown."""
        lines = ["On " + ", ".join(f"{name} {value}" for name, value in self.machine.items()) + ":", ""]
        lines += ["| step | what | value | verdict |", "|---|---|---|---|"]
        for f in self.figures:
            shown = f"{f.value:.4g}" if isinstance(f.value, float) else str(f.value)
            verdict = {None: "", True: "pass", False: "FAIL"}[f.passed]
            lines.append(f"| {f.step} | {f.what} | {shown} {f.unit} | {verdict} |")
        lines += ["", *(f"- left out: {what}" for what in self.left_out)]
        return "\n".join(lines).rstrip() + "\n"
