"""The pieces of an experiment as tasks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from .. import files
from ..integrations import cluster
from . import catalogue
from .jobs import Jobs


def spread(
    name: str, preset: str, folder: Path, address: str | None, tell: Callable[[str], None], only: str = ""
) -> None:
    """Run the pieces of a recipe that are not finished on a cluster, and write each into the folder as it comes.

    A piece whose worker is lost runs again, on another. Workers keep pieces and networks in a folder of the same name;
    where machines share it, a network that several pieces need is trained once.
    """
    jobs, pieces = Jobs(folder), catalogue.find(name, preset).load().pieces(preset)
    wanted = [at for at, p in enumerate(pieces) if p.matches(only) and jobs.seconds_of(p.key) is None]
    with cluster.connected(address, "--engine ray") as ray:
        tell(f"{len(wanted)} pieces to do, on {int(ray.cluster_resources().get('CPU', 1))} processors")
        given = [(name, preset, str(folder.absolute()), at) for at in wanted]
        for number, text in cluster.run_tasks(ray, run_piece, given):
            piece = pieces[wanted[number]]
            target = jobs.file_of(piece.key)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():  # machines that share the folder have written it already
                files.write_text(target, text)
            tell(f"{piece.label}: done")


def run_piece(name: str, preset: str, folder: str, number: int) -> str:
    """Run one piece, in a worker; returns the text of its file."""
    jobs, piece = Jobs(Path(folder)), catalogue.find(name, preset).load().pieces(preset)[number]
    jobs(piece.key, partial(piece.cell.measure, jobs, piece.seed or 0), piece.label)
    return jobs.file_of(piece.key).read_text(encoding="utf-8")
