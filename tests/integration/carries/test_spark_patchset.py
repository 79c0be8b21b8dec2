"""The patchset of this repository on vLLM's real releases: every merge and every proof anew."""

import itertools
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest
from subsets_kit import prefixes, telling_subsets

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ToolError
from sparkwright.carries.patchset import closure
from sparkwright.git.repository import TreeEntry
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import OutcomeKind
from sparkwright.native.host import find_compiler
from sparkwright.native.model import Target
from sparkwright.native.sources import gather_sources
from sparkwright.pipeline.checkout import open_checkout, series_names
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.proof import ProbeVerdict, Proof, proof_file
from sparkwright.probe.upstream_tests import read_record, record_path

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).parents[3]
SPECS = {series: open_checkout(ROOT, series).build_spec() for series in ("0.24", "0.33")}
CARRIES = SPECS["0.24"].carries
CURRENT = [one for one in SPECS["0.33"].carries if one.spec.scope == "runtime"]
PREFIXES = list(prefixes(CARRIES))
SOURCES = sorted({carry.spec.source for carry in CARRIES if carry.spec.source is not None})
RELEASES = run_path(str(ROOT / "scripts" / "upstream_releases.py"))
RECORDED = RELEASES["recorded"]()
COLUMNS = [(series, release) for series, columns in RECORDED.items() for release in columns]


def by_name(carry):
    return carry.name


def needs(carry):
    """What its probe needs from the outside; one without a probe fails where it is to be proved."""
    return carry.spec.probe.needs if carry.spec.probe is not None else ()


# Probes that call CMake for each architecture take minutes, and so do Triton's kernels for NVFP4 in its
# interpreter: anew with those on prefixes. Their recorded proofs are held against what is merged now.
LONGEST = {"nvfp4-kv-triton", *(carry.name for carry in CARRIES if needs(carry))}


def proved_anew(series, carries, few):
    """Return *carries* as parameters of a test; all but *few* have the `walk` mark.

    The build spec's digest chooses these, so that each change of the patchset proves another. A proof
    takes ten seconds of both cores, and the others' recorded proofs are of these very files.
    """
    digest = SPECS[series].digest
    quick = [carry for carry in carries if carry.name not in LONGEST]
    drawn = sorted(map(by_name, quick), key=lambda name: zlib.crc32(f"{digest} {name}".encode()))[:few]
    return [
        pytest.param(
            series, carry, id=f"{series}-{carry.name}", marks=() if carry.name in drawn else pytest.mark.walk
        )
        for carry in carries
    ]


def last_of(part):
    return part[-1].name


@pytest.fixture(scope="module")
def pool():
    """Of both series: their probes run in one environment, whose packages are then imported once."""
    with open_job(ROOT) as job, ProbePool(job.store) as pool:
        yield pool


@pytest.fixture(scope="module")
def job(pool):
    """Of native kernels, so that no carry is left out; with those sources that can be had."""
    with open_job(ROOT, BuildOptions(series="0.24", kernels="native")) as job:
        gather_sources(job.spec.lock, job.access, wanted=SOURCES)
        yield replace(job, pool=pool)


@pytest.fixture(scope="module")
def current(pool):
    """Of series 0.33, with upstream's kernels."""
    with open_job(ROOT, BuildOptions(series="0.33", kernels="upstream")) as job:
        yield replace(job, pool=pool)


def expected(job, carry, otherwise):
    """*otherwise*, but for a change to a source that nobody could bring here."""
    source = next(entry.spec.source for entry in job.spec.carries if entry.name == carry)
    lost = source is not None and source not in job.available_sources
    return str(OutcomeKind.LEFT_OUT) if lost else otherwise


def lacking():
    """Why nothing can be configured for the Spark here; empty if it can."""
    try:
        find_compiler(Target("aarch64", "12.1a"))
    except ToolError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def merged(job):
    lock = job.spec.lock
    return merge_patchset(job.repository, job.merge_request(job.source.pristine(lock), lock.release.version))


def test_the_point_with_upstreams_kernels_has_no_build_carries(job):
    upstream = job.checkout.build_spec()
    built = [carry.name for carry in CARRIES if carry.spec.scope == "build"]
    assert list(upstream.left_out) == built == ["native-sm121a", "flash-attn-sm121a"]
    request = replace(job, spec=upstream).merge_request(job.pristine, job.spec.lock.release.version)
    report = merge_patchset(job.repository, request)
    assert not any(path.startswith(("CMake", "cmake/", "csrc/")) for path in job.changes(report))
    assert {str(report.outcome(name).kind) for name in built} == {"left-out"}


@pytest.mark.parametrize("series", series_names(ROOT))
def test_upstreams_tests_were_run_on_these_trees_and_nothing_regressed(series):
    """After a change of a carry or of the pin: `make test-upstream SERIES=…`."""
    with open_job(ROOT, BuildOptions(series=series, kernels="upstream")) as job, ProbePool(job.store) as pool:
        request = job.merge_request(job.pristine, job.spec.lock.release.version)
        gate = job.upstream_gate(merge_patchset(job.repository, request), pool)
        found = read_record(record_path(job.checkout.patchsets, job.spec.file))
    assert found is not None
    assert found.key == gate.key(), f"the record is of another state: make test-upstream SERIES={series}"
    assert not found.regressions
    assert found.passed > 0


@pytest.mark.slow
@pytest.mark.walk  # `make prove` runs them all
def test_upstreams_tests_find_what_no_probe_sees_and_leave_the_patchset_alone():
    """The plant is an attribute of the carry's that upstream's stand-ins of a scheduler do not have."""
    code, tests = "vllm/v1/core/sched/scheduler.py", "tests/v1/core/test_mamba_align_chunk_split.py"
    with open_job(ROOT, BuildOptions(series="0.33", kernels="upstream")) as job, ProbePool(job.store) as pool:
        report = merge_patchset(
            job.repository, job.merge_request(job.pristine, job.spec.lock.release.version)
        )
        gate, objects = job.upstream_gate(report, pool), job.repository.objects
        healthy = gate.run([tests])
        assert (healthy.passed, healthy.regressions, healthy.flaky) == (48, {}, ())
        entry = job.repository.files(report.tree, [code])[code]
        text = job.repository.blob(entry.blob).decode()
        old = "block_size = block_size or self.cache_config.block_size"
        assert text.count(old) == 1
        new = old.replace("or self.cache", "or self.mamba_block_size or self.cache")
        blob = objects.write("blob", text.replace(old, new).encode())
        planted = replace(gate, merged=objects.edit(report.tree, {code: TreeEntry(entry.mode, blob)}))
        found = planted.run([tests])
        assert (len(found.regressions), found.passed) == (40, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("series", "release"), COLUMNS)
def test_the_recorded_outcomes_are_what_merges_and_recorded_proofs_give(series, release):
    """A change in it is `make releases`, and a look at what changed."""
    stated = RECORDED[series][release]
    found = RELEASES["columns_of"]([series], [release], {series: {release: stated}})
    assert found == {series: {release: stated}}


def merge_part(job, part):
    """The report on *part* of the patchset alone, merged onto the pin."""
    request = job.merge_request(job.pristine, job.spec.lock.release.version)
    return merge_patchset(job.repository, replace(request, carries=part))


def require_merged(job, report):
    """Every carry that *report* is about is in a tree."""
    found = {outcome.carry: str(outcome.kind) for outcome in report.outcomes}
    assert found == {name: expected(job, name, "applied") for name in found}


def unprovable(job, carry):
    """Why *carry* cannot be proved here; empty if it can."""
    if carry.spec.source is not None and carry.spec.source not in job.available_sources:
        return f"the source of {carry.spec.source} cannot be had here"
    return lacking() if needs(carry) else ""


def skip_what_cannot_be_proved(job, carry):
    if why := unprovable(job, carry):
        pytest.skip(why)


def require_proof(job, carry, report, *, anew=False):
    """The probe of *carry* holds on the tree of *report*; a proof of the very same files is taken for one."""
    paths = report.outcome(carry.name).paths
    prover = job.prover(report)
    proof = (None if anew else prover.find(carry, paths)) or prover.prove(carry, paths)
    assert proof.verdict is ProbeVerdict.PROVED, f"{proof.pristine}\n{proof.merged}"


def test_every_prefix_merges_into_files_that_compile(job, merged):
    """A merge of them all has the tree of each prefix: a carry is a commit on those before it."""
    require_merged(job, merged)
    commits = job.repository.command("log", "--reverse", "--format=%H", merged.commit).text.split()
    assert len(commits) == 1 + sum(carry.spec.source is None for carry in CARRIES)
    for before, after in itertools.pairwise(map(job.repository.tree_of, commits)):
        for path, (_, new) in job.repository.changed(before, after).items():
            if path.endswith(".py"):
                assert new is not None, f"{path} is gone"
                compile(job.repository.blob(new.blob), path, "exec", dont_inherit=True)


@pytest.mark.walk
@pytest.mark.parametrize("part", PREFIXES, ids=last_of)
def test_every_prefix_proves_its_last_carry(job, part):
    skip_what_cannot_be_proved(job, part[-1])
    require_proof(job, part[-1], merge_part(job, part))


@pytest.mark.walk
@pytest.mark.parametrize("part", PREFIXES, ids=last_of)
def test_every_prefix_keeps_what_was_proved_before(job, part):
    # Only where a carry changes a file on which an earlier proof hangs is there anything to run.
    report = merge_part(job, part)
    for carry in part[:-1]:
        if not needs(carry):
            require_proof(job, carry, report)


@pytest.mark.walk
@pytest.mark.parametrize("carry", [carry for carry in CARRIES if not needs(carry)], ids=by_name)
def test_every_carry_works_with_what_it_requires_and_nothing_else(job, carry):
    # Anew: a recorded proof would not know that another carry's file, which the probe does not name, is gone.
    require_proof(job, carry, merge_part(job, closure([carry.name], CARRIES)), anew=True)


@pytest.mark.walk  # a merge of each carry alone, and of many parts; make test-prefixes proves them too
def test_every_part_that_requirements_allow_merges(job):
    alone = [merge_part(job, closure([carry.name], CARRIES)) for carry in CARRIES]
    touched = {report.outcomes[-1].carry: report.outcomes[-1].named_paths for report in alone}
    for part in telling_subsets(CARRIES, touched):
        require_merged(job, merge_part(job, part))


def read_proof(folder, version):
    path = folder / proof_file(version)
    return decode_json(path.read_bytes(), Proof) if path.is_file() else None


def held(job):
    """The carries of *job* whose recorded proof is of what is merged on the pin, by name."""
    release = job.spec.lock.release.version
    report = merge_patchset(job.repository, job.merge_request(job.pristine, release))
    found = set()
    for carry in job.spec.carries:
        outcome, recorded = report.outcome(carry.name), read_proof(carry.folder, release)
        if str(outcome.kind) == "applied" and recorded is not None:
            proof = job.prover(report).find(carry, outcome.paths, recorded=True)
            if proof == recorded and proof.verdict is ProbeVerdict.PROVED:
                found.add(carry.name)
    return found


def test_every_recorded_proof_is_of_what_is_merged_now(job, current):
    unknown = {carry.name for carry in CARRIES if unprovable(job, carry)}
    assert held(job) | unknown == set(map(by_name, CARRIES))
    assert held(current) == set(map(by_name, CURRENT))


@pytest.mark.parametrize(
    ("changed", "before", "after"),
    [
        ("mamba-block-units/0.33.0.patch", "self.mamba_block_size = next(", "self.mamba_block_size = min("),
        ("mamba-block-units/probe.py", "20_000", "20_001"),
        ("kv-zero-mixed/probe_0_33.py", "16, 12, 128", "16, 13, 128"),
        ("uma-clamp/probe.py", "estimate", "Estimate"),  # a helper of its later probe
        ("shm-busy-loop/proofs/0.33.0.json", '"key": "', '"key": "0'),
    ],
)
def test_a_changed_byte_is_found_in_0_33(tmp_path, changed, before, after):
    for part in ("carries", "patchsets", "upstream.lock"):
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile)(ROOT / part, tmp_path / part)
    path = tmp_path / "carries" / changed
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with open_job(tmp_path, BuildOptions(series="0.33", kernels="upstream")) as job:
        assert set(map(by_name, CURRENT)) - held(job) == {changed.split("/")[0]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("series", "carry"), [*proved_anew("0.24", CARRIES, 0), *proved_anew("0.33", CURRENT, 1)]
)
def test_every_carry_is_proved_anew_and_as_recorded(job, current, series, carry):
    job = {"0.24": job, "0.33": current}[series]
    skip_what_cannot_be_proved(job, carry)
    release = job.spec.lock.release.version
    report = merge_patchset(job.repository, job.merge_request(job.pristine, release))
    proof = job.prover(report).prove(carry, report.outcome(carry.name).paths)
    recorded = read_proof(carry.folder, release)
    assert (recorded.key, recorded.verdict) == (proof.key, ProbeVerdict.PROVED), f"{proof.merged}"
