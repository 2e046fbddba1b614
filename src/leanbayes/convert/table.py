"""A plan as a table for the terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Plan

PRECEDENCE = "Precedence: module, then name, then type, then callable; within a kind the first rule that matches wins."


def plan_table(plan: Plan, width: int = 120) -> str:
    """Converted modules with their rule, those left alone with the reason, and the growth in parameters."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("module", "type", "becomes", "why"):
        table.add_column(column, overflow="fold")
    for column in ("parameters", "after"):
        table.add_column(column, justify="right", overflow="fold")
    for e in plan.entries:
        name = e.name if not e.aliases else f"{e.name} (= {', '.join(e.aliases)})"
        becomes = "-" if e.method is None else type(e.method).__name__
        after = "" if e.method is None else f"{e.after:,}"
        table.add_row(name or "(model)", e.kind, becomes, e.why, f"{e.before:,}", after)
    stream = io.StringIO()
    console = Console(file=stream, width=width, no_color=True, highlight=False)
    console.print(table)
    console.print(
        f"{len(plan.converted)} converted, {len(plan.left_alone)} left alone; "
        f"{plan.parameters_before:,} -> {plan.parameters_after:,} parameters ({plan.growth:.3f}x)"
    )
    if len({e.why.partition(";")[0] for e in plan.entries if e.method is not None or e.why.startswith("excluded")}) > 1:
        console.print(PRECEDENCE)
    return stream.getvalue().rstrip()
