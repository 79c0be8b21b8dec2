"""The remote tier of the store in a command's result."""

from __future__ import annotations

import click

from sparkwright.base.text import human_size
from sparkwright.cli.session import Session
from sparkwright.store.remote.tier import RemoteReport


def remote_report(session: Session) -> RemoteReport | None:
    """Return what the remote tier did in this command; `None` without one."""
    remote = session.store.remote
    return None if remote is None else remote.report


def remote_summary(report: RemoteReport | None) -> dict[str, object]:
    """Return the part of a command's JSON about the remote tier; empty without one."""
    return {} if report is None else {"remote": report.to_json()}


def show_remote(report: RemoteReport | None) -> None:
    """Print the remote tier's part in a command; nothing without one."""
    if report is None:
        return
    read, written = human_size(report.bytes_read), human_size(report.bytes_written)
    click.echo(f"shared   {report.hits} found and {report.misses} not in {report.url}: {read} read")
    if report.written:
        click.echo(f"         {report.written} written: {written}")
    if report.refused:
        click.echo(f"         {report.refused} refused: not what was asked for, or of unknown writers")
    if report.stopped:
        click.echo(f"         stopped: {report.stopped}")
