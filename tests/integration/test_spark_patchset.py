"""The patchset of this repository on vLLM's real releases: every merge and every proof anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkwright.git import open_repository
from sparkwright.merge import MergeRequest, merge_patchset
from sparkwright.merge.report import OutcomeKind
from sparkwright.plan import Job, Options, open_checkout
from sparkwright.probe import Verdict, read_proof
from sparkwright.store import open_store
from sparkwright.upstream import Access, open_source, read_settings

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).parents[2]
CARRIES = tuple(carry.name for carry in open_checkout(ROOT).point("spark").carries)
TABLE = (ROOT / "docs" / "upstream-releases.md").read_text(encoding="utf-8")
RELEASES = re.findall(
    r"\d+\.\d+\.\d+", next(line for line in TABLE.splitlines() if line.startswith("| carry "))
)


@pytest.fixture(scope="module")
def job():
    checkout = open_checkout(ROOT)
    store = open_store()
    repository = open_repository(store.git)
    source = open_source("index", Access(store, repository, read_settings()))
    options = Options(platform="aarch64", source="index", out=ROOT / "dist")
    yield Job(checkout, checkout.point("spark"), options, store, repository, source)
    repository.close()


@pytest.fixture(scope="module")
def merged(job):
    lock = job.point.lock
    return merge_patchset(job.repository, job.merge_request(job.source.pristine(lock), lock.release.version))


def documented(release):
    """The outcomes that the table in the documents gives for *release*."""
    column = RELEASES.index(release) + 2
    rows = [
        [cell.strip() for cell in line.split("|")] for line in TABLE.splitlines() if line.startswith("| `")
    ]
    return {row[1].strip("`"): row[column] for row in rows}


def test_the_table_names_every_carry_and_the_pin(job):
    assert list(documented(job.point.lock.release.version)) == list(CARRIES)


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_the_documented_outcomes_are_what_the_merge_finds(job, release):
    pristine = job.source.release(release)
    report = merge_patchset(job.repository, job.merge_request(pristine, release))
    assert {outcome.carry: str(outcome.kind) for outcome in report.outcomes} == documented(release)


@pytest.mark.parametrize("length", range(1, len(CARRIES) + 1))
def test_every_prefix_of_the_patchset_merges(job, length):
    lock = job.point.lock
    prefix = job.point.carries[:length]
    pristine = job.source.pristine(lock).tree
    request = MergeRequest(pristine, lock.release.version, prefix, job.find_base)
    report = merge_patchset(job.repository, request)
    assert [outcome.kind for outcome in report.outcomes] == [OutcomeKind.APPLIED] * length


@pytest.mark.slow
@pytest.mark.parametrize("name", CARRIES)
def test_every_carry_is_proved_anew_and_as_recorded(job, merged, name):
    carry = next(carry for carry in job.point.carries if carry.name == name)
    paths = merged.outcome(name).paths
    proof = job.prover(merged).prove(carry, paths)
    assert proof.verdict is Verdict.PROVED, f"{proof.pristine}\n{proof.merged}"
    recorded = read_proof(carry.folder)
    assert recorded is not None
    assert (recorded.key, recorded.verdict) == (proof.key, Verdict.PROVED)
    assert job.prover(merged).find(carry, paths) == recorded
