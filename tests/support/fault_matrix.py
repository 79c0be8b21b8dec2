"""The fault matrix: faults of the simulator, and the verdicts that the suite must give.

One case is one run of the whole suite against a simulator with one fault, small enough for a hundred runs.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import jsonschema.validators  # noqa: F401 - by every forked process once, else by each of them
import msgspec
import scipy.stats  # noqa: F401

from sparkwright.base.errors import EndpointError, ServerError
from sparkwright.base.process import guard, session
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.verify.checks import ALL
from sparkwright.verify.journal import worst
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.profiles import PROFILES, Profile
from sparkwright.verify.setup import prepare
from sparkwright.verify.simulator.main import main, simulator
from sparkwright.verify.suite import run_plan

_start_session = session.start_session
_SIMULATOR = ("-m", main.__module__)


def fork_simulators() -> None:
    """Let `sparkwright.base.process.session.start` fork this process for a simulator.

    It has imported what they need. Each is still a process behind a guard, in a session of its own.
    """
    session.start_session = _start


def _start(
    argv: Sequence[str], command: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> Any:
    if command[1:3] != _SIMULATOR:
        return _start_session(argv, command, cwd, env, output)
    parent = os.getpid()
    if pid := os.fork():
        return SimpleNamespace(pid=pid, returncode=None)
    status = 1
    try:
        gc.freeze()  # what is closed below keeps its numbers, which this process uses again
        os.setsid()
        os.chdir(cwd)
        for number, other in enumerate((os.open(os.devnull, os.O_RDONLY), output.fileno(), output.fileno())):
            os.dup2(other, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115 - open to the end
        os.environ.clear()
        os.environ.update(env)
        signal.set_wakeup_fd(-1)
        guard.kill_group_on_parent_death(parent)
        if pid := os.fork():
            status = guard.end_like(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            status = main(command[3:])
    except BaseException as error:  # noqa: BLE001 - as an interpreter ends by it
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


# In the server's seconds, of which 60 pass in one of the client's.
PATIENT = Deadlines(first_token_s=1200.0, stall_s=600.0, canary_s=600.0, quiesce_s=600.0)
HASTY = Deadlines(first_token_s=120.0, stall_s=120.0, canary_s=120.0, quiesce_s=120.0)

SMALL = Profile(
    name="small",
    # Two have a server of their own below.
    checks=tuple(name for name in PROFILES["full"].checks if name not in {"bands", "traffic"}),
    categories=("code", "prose"),
    levels=(1, 8, 32),
    requests_per_client=1,
    least_requests=16,
    max_tokens=96,
    off_grid=(17,),
    waves=1,
    contexts=(8_000,),
    context_requests=2,
    soak_s=400.0,
    soak_concurrency=4,
    lossless_prompts=20,
    speed=60.0,
    deadlines=PATIENT,
)
# Where every request shows the fault, or none counts.
TINY = msgspec.structs.replace(SMALL, name="tiny", categories=("code",), levels=(1, 4), least_requests=10)

# Where the client's own error is judged by nothing but warnings.
REAL_TIME = msgspec.structs.replace(TINY, name="smoke", speed=1.0)

# A burst outlasts the arrival of its requests from a busy machine, so that all of them run at a time.
BURSTS = msgspec.structs.replace(SMALL, name="bursts", speed=6.0)

# Short answers are not read at once by a busy machine, which would take them for held back.
CHATS = msgspec.structs.replace(SMALL, name="chats", speed=15.0)

# Clocks on which a step takes longer than the delays of a busy machine, on a server that is too fast too.
ONE_BY_ONE = msgspec.structs.replace(SMALL, name="one by one", levels=(1,), least_requests=8, speed=20.0)
FAST = msgspec.structs.replace(ONE_BY_ONE, name="fast", speed=6.0)
SLOW = msgspec.structs.replace(ONE_BY_ONE, name="slow", speed=100.0)
# A simulator takes as long to read a long prompt, whatever its clock.
UNHURRIED = msgspec.structs.replace(SMALL, name="unhurried", speed=20.0)
# The last look at a comparison passes what may be a tenth slower: three starts, which differ by 1.5 %, do.
STARTS = msgspec.structs.replace(
    TINY, name="starts", speed=10.0, boots=3, most_boots=5, comparison_requests=6, max_tokens=128
)

COMPARED = {"against": "simulator", "levels": (1, 8)}
# Ten times as slow shows at once.
PAIRS = msgspec.structs.replace(TINY, name="pairs", boots=3, most_boots=3, comparison_requests=3)


@dataclass(frozen=True)
class Case:
    """One fault and its expected result.

    Attributes:
        fault: as for ``--fault``; empty for a healthy server.
        check: the check that must notice; for a healthy server the only one that runs, all if empty.
        verdict: of that check.
        says: pattern of a cause among its findings that did not pass.
        profile: the sizes.
        options: more of them, see `VerifyOptions`.
        warns: pattern of a warning of any finding.
    """

    fault: str
    check: str
    verdict: Verdict
    says: str = ""
    profile: Profile = SMALL
    options: Mapping[str, Any] = field(default_factory=dict)
    warns: str = ""

    @property
    def name(self) -> str:
        """Unique name among all cases."""
        seed = "" if self.fault else str(self.options.get("seed", 0))
        return " ".join(filter(None, (self.fault or "healthy", self.check, seed)))


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        verdict: of the check that the case is about, or of all for a healthy server.
        causes: of its findings that did not pass.
        warnings: of all findings.
        verdicts: of every check that ran.
        findings: number of findings.
    """

    verdict: Verdict
    causes: tuple[str, ...]
    warnings: tuple[str, ...]
    verdicts: Mapping[str, Verdict]
    findings: int

    @property
    def checks(self) -> set[str]:
        """Names of the checks that ran."""
        return set(self.verdicts)

    @property
    def told(self) -> str:
        """All causes, for the message of a failing test."""
        return "\n".join(self.causes)


def run_case(case: Case, folder: Path) -> Outcome:
    """Run the suite as *case* states; write its files to *folder*."""
    checks: tuple[str, ...] = (case.check,) if case.check in ALL else ("boot",)
    if not case.check:
        checks = case.profile.checks
    profile = msgspec.structs.replace(case.profile, checks=checks)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        findings = asyncio.run(_run(case, profile, folder))
    except (EndpointError, ServerError) as error:
        causes = (f"{error}",)
        return Outcome(Verdict.FAIL, causes, (), {case.check: Verdict.FAIL}, 1)
    bad = [finding for finding in findings if finding.verdict is not Verdict.PASS]
    own = [finding for finding in findings if finding.check == case.check]
    return Outcome(
        worst(own or findings),
        tuple(f"{finding.verdict} {finding.check}: {finding.name}: {finding.cause}" for finding in bad),
        tuple(warning for finding in findings for warning in finding.warnings),
        {name: worst([finding for finding in findings if finding.check == name]) for name in checks},
        len(findings),
    )


# Checks that take longest, in this order; all of them, on a healthy server, have no name.
_LONGEST = {"compare": 0, "": 1, "soak": 2, "lossless": 3}


def run_cases(cases: Sequence[Case], folder: Path) -> dict[str, Outcome]:
    """Run *cases*, below *folder*; return the outcome of each by its name.

    Four run at a time, since each waits for its simulator's clock most of its time; the longest begin.
    """
    first = sorted(cases, key=lambda case: _LONGEST.get(case.check, len(_LONGEST)))
    with ProcessPoolExecutor(4, initializer=fork_simulators) as pool:
        found = pool.map(run_case, first, [folder / f"{number}" for number in range(len(first))])
        outcomes = {case.name: outcome for case, outcome in zip(first, found, strict=True)}
    return {case.name: outcomes[case.name] for case in cases}


async def _run(case: Case, profile: Profile, folder: Path) -> tuple[Finding, ...]:
    if case.check == "endpoint":
        async with simulator(folder, "--fault", case.fault) as endpoint:
            options = VerifyOptions(url=endpoint.url, **case.options)
            return await run_plan(*await prepare(plan_of(options, profile), folder / "run"), folder / "run")
    faults = (case.fault,) if case.fault else ()
    options = VerifyOptions(simulator=True, faults=faults, **case.options)
    if case.check == "reference":
        made = await _reference(folder, profile)
        options = msgspec.structs.replace(options, reference=str(made))
    return await run_plan(*await prepare(plan_of(options, profile), folder), folder)


async def _reference(folder: Path, profile: Profile) -> Path:
    """Return a reference of the simulated model, made on a healthy server of another start."""
    options = VerifyOptions(simulator=True, checks=("reference",), seed=1000)
    place = folder / "reference"
    await run_plan(*await prepare(plan_of(options, profile), place), place)
    return place


# A server with a reference band: the recipe names it, and the simulator's steps take as long as its own.
BANDED = {"recipe": "qwen3.6-27b-dflash", "speculative_tokens": 12}


def seeds(count: int, without: Collection[str] = ()) -> tuple[Case, ...]:
    """Return healthy servers, *count* for all checks *without* some together, each with its own seed."""
    small = msgspec.structs.replace(SMALL, checks=tuple(name for name in SMALL.checks if name not in without))
    kinds: tuple[tuple[str, Profile, Mapping[str, Any], int], ...] = (
        ("", small, {}, count),
        ("bands", ONE_BY_ONE, BANDED, count),
        ("traffic", CHATS, {}, max(1, count // 4)),
        ("parity", SMALL, {}, max(1, count // 4)),
        ("prefix", SMALL, {}, max(1, count // 4)),
        ("compile", TINY, {}, max(1, count // 4)),
        ("reference", SMALL, {}, count),
        ("compare", STARTS, COMPARED, max(1, count // 4)),  # of two minutes each
    )
    return tuple(
        Case("", check, Verdict.PASS, profile=profile, options={**options, "seed": seed})
        for check, profile, options, many in kinds
        for seed in range(many)
    )


def _stream(fault: str, says: str, verdict: Verdict = Verdict.FAIL, **changes: Any) -> Case:
    """Return a case whose fault single requests of the sweep show."""
    return Case(fault, "sweep", verdict, says, msgspec.structs.replace(TINY, **changes))


FAIL, INVALID, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS

# A healthy server beside it, whose KV cache is FP8.
AGAINST_FP8 = {"against": "simulator", "checks": ("boot", "compare"), "boots": 1}

CASES = (
    # Acceptance
    Case("decay-linear", "soak", FAIL, "decay"),
    Case("decay-step", "soak", FAIL, "decay"),
    Case("decay-cached", "soak", FAIL, "cached"),
    Case("no-hits", "soak", FAIL, "not exercised"),
    Case("inert", "sweep", FAIL, "drafter inert", TINY),
    Case("nan-drafts", "sweep", FAIL, "drafter inert", TINY),
    Case("no-speculation", "sweep", FAIL, "should speculate", TINY),
    Case("no-spec-series", "sweep", FAIL, "exposes no vllm:spec_decode", TINY),
    Case("long-context", "context", FAIL, "acceptance is lost: at 8000 tokens"),
    Case("falls-with-load", "sweep", FAIL, r"at c=32 the mean acceptance length is 0\."),
    Case("inflated-acceptance", "sweep", INVALID, "is off by", TINY),
    # Ends and standstills
    Case("crash-at", "crash", FAIL, "burst c=32.*block_table", BURSTS),
    Case("crash-off-grid", "crash", FAIL, "burst c=17.*block_table", BURSTS),
    Case("crash-on-drain", "crash", FAIL, "block_table"),
    Case("oom-under-load", "crash", FAIL, r"ended in burst c=17.*(137|-9)", BURSTS),
    Case("dead-engine", "crash", FAIL, "no longer answered", msgspec.structs.replace(TINY, deadlines=HASTY)),
    # A busy machine may have sent too few of the 17 before the first of them ended.
    Case("wedge", "crash", FAIL, "wedged in burst c=(17|32): .* requests are held.*says 200.*another rank"),
    Case("slow-state", "sweep", INVALID, "slow state of the machine in code c=1 .*611 of 3003 MHz at 14 W"),
    Case("slow-state=onset_s:600", "soak", INVALID, r"slow state.*; 2411 of 3003 MHz.*tokens/s are 0\.[2-5]"),
    _stream("hang", "hung: no token", deadlines=HASTY),
    _stream("stall", "stalled in the middle", deadlines=HASTY),
    _stream("runaway", "a runaway generation: more came than was requested"),
    Case("slow", "compare", FAIL, "slower|worse", PAIRS, COMPARED),
    Case("counter-reset", "sweep", INVALID, "started again unnoticed"),
    Case("orphan", "server", PASS),
    Case("compiles", "compile", FAIL, "compiled while requests of a known kind waited.*nvcc", TINY),
    # Streams that break
    _stream("cut-fin", r"without \[DONE\]"),
    _stream("cut-close", "broke off"),
    _stream("cut-reset", "reset"),
    _stream("cut-json", "not JSON"),
    _stream("error-in-band", "error inside the stream"),
    _stream("status", "status 500"),
    _stream("status=code:429", "status 429"),
    _stream("status=code:503", "status 503"),
    _stream("html", "not JSON.*text/html"),
    _stream("buffered", "not streamed", INVALID),
    # Counts
    _stream("no-usage", "no token count", INVALID),
    _stream("wrong-usage", "contradicts itself", INVALID),
    _stream("early-stop", "another number of tokens", INVALID),
    _stream("abort", "finish reason 'abort'"),
    Case("wrong-tokenize", "context", INCONCLUSIVE, "documents of 8000 tokens came to"),
    # Streams that are odd, and right
    *(
        Case(name, "coherence", PASS)
        for name in (
            "usage-at-end", "role-chunks", "empty-content", "reasoning-only", "reasoning-content",
            "tool-calls", "sse-comments", "crlf", "split-reads", "joined-events",
        )
    ),
    # Start
    Case("boot-killed", "boot", FAIL, "137|memory"),
    Case("boot-cuda-oom", "boot", FAIL, "CUDA out of memory"),
    Case("boot-engine", "boot", FAIL, "attention backend"),
    Case("boot-slow", "boot", FAIL, "no answer within 1800 s", msgspec.structs.replace(TINY, speed=1200.0)),
    Case("negative-estimate", "boot", FAIL, "-35.69"),
    Case("unrounded-graphs", "boot", FAIL, "no multiples of 1"),
    Case("piecewise-drafts", "boot", PASS, profile=TINY, warns="steps with drafts run in piecewise graphs"),
    Case("fp4-fallback-linear", "boot", FAIL, "linear layers run on MarlinNvFp4LinearKernel", TINY),
    Case("fp4-fallback-moe", "boot", FAIL, "MoE layers run on EMULATION", TINY),
    Case("nvfp4-no-gain", "boot", FAIL, "NVFP4 cache holds 1.00 times", TINY, AGAINST_FP8),
    # What is generated
    Case("repeated-token", "coherence", FAIL, "loop|one token|repeat"),
    Case("one-token", "coherence", FAIL, "loop|one token|repeat"),
    Case("word-salad", "coherence", FAIL, "facts alone c=1: 0 of 12 answers are right"),
    Case("lossy", "lossless", FAIL, "gap"),
    Case("lossy-position", "lossless", FAIL, "lossy at a fixed place.*output token 24"),
    Case("near-ties", "lossless", PASS),
    Case("lossy", "parity", FAIL, "leave the other server's"),
    Case("near-ties", "parity", PASS),
    Case("stale-cache", "prefix", FAIL, "depend on the prefix cache"),
    Case("no-hits", "prefix", FAIL, "no token of any repeated document came from the prefix cache"),
    Case("stale-block", "prefix", FAIL, "prompts of a multiple of 16 tokens"),
    Case("late-state", "prefix", FAIL, "depend on the prefix cache"),
    # Chats
    Case("template-missing", "traffic", FAIL, "in the chat template: .*turn 1.*the marker of a role"),
    Case("history-dropped", "traffic", FAIL, "reach the model: .*turn [23].*earlier messages are dropped"),
    Case("reasoning-in-answer", "traffic", FAIL, "out of the answer: .*reasoning in the answer, '</think>'"),
    Case("replacement-characters", "traffic", FAIL, r"are whole: .*replacement characters \(U\+FFFD\)"),
    Case("tool-parser-swallows", "traffic", FAIL, "calls are whole: .*'unit' is a required property"),
    Case("tool-json-truncated", "traffic", FAIL, "are whole: .*arguments of get_weather: truncated JSON"),
    Case("tool-choice-ignored", "traffic", FAIL, "tool calls come: .*tools named: 4 of 4 .*no call, though"),
    Case("guided-calls-misfit", "traffic", FAIL, "calls come: .*required.*'unit' is a required property"),
    # Sampling, reasoning and pictures
    Case("temperature-ignored", "sampling", FAIL, "sampling draws: .*the temperature is ignored: 6 of 6"),
    Case("seed-ignored", "sampling", FAIL, r"one answer: .*ignored: [01] of 6 prompts have the same"),
    Case("seed-fixed", "sampling", FAIL, "draws: .*seed is ignored: 6 of 6 .* the same answer to two seeds"),
    Case("sampling-garbage", "sampling", FAIL, "answers are text: .*loaded: 6 of 6.*the alphabet changes"),
    Case("thinking-not-off", "thinking", FAIL, "it is off: .*off: 4 of 4 answers.*characters of reasoning"),
    Case("reasoning-lost", "thinking", FAIL, "has its field: .*none of 4 answers.*the parser loses it"),
    Case("thoughts-unparsed", "thinking", FAIL, "its field: .*'</think>'.*no reasoning parser, or the wrong"),
    Case("answer-in-reasoning", "thinking", FAIL, "has its field: .*and no answer after them"),
    Case("budget-ignored", "thinking", FAIL, "keeps its budget: .*reasoning came where 24 were allowed"),
    Case("image-ignored", "image", FAIL, "are seen: .*0 of 6 colours are right with pictures, 0 without"),
    Case("images-dropped", "image", FAIL, "are in the prompt: .*6 of 6 prompts.*left out of the prompt"),
    # Long prompts, alone and beside others
    Case("truncates-prompts", "limit", FAIL, "longer requests are refused: .*is answered instead of refused"),
    Case("limit-crash", "limit", FAIL, "illegal memory access"),
    Case("limit-wrong", "limit", FAIL, "of full length are answered: .*at the limit.*wrong"),
    Case("prefill-starves", "mixed", FAIL, "no token while prompts were prefilled", UNHURRIED),
    Case("mixed-drops", "mixed", FAIL, "numbers are missing"),
    # What it is, and how fast
    # Flagged only where the client's own error shows beside it: a quiet machine's does not.
    Case("flood", "sweep", PASS, profile=REAL_TIME),
    Case("slow=10", "bands", PASS, "", SLOW, BANDED, warns=r"code c=1: verify step ms is 1\d\d\d"),
    Case("slow=0.2", "bands", INVALID, "artefact: code c=1", FAST, BANDED),
    Case("no-metrics", "endpoint", FAIL, "has no counters of vLLM"),
    Case("metrics-vanish", "sweep", INVALID, "counters could not be read after code c=1", TINY),
    Case("flaky-tokenize", "context", INCONCLUSIVE, "could not be sized by POST /tokenize"),
    Case("old-version", "endpoint", FAIL, "before 0.20"),
    Case("not-json", "endpoint", FAIL, "HTML|JSON"),
    # What the model computes
    Case("wrong-layer", "reference", FAIL, "probabilities are .* nat"),
    Case("wrong-positions", "reference", FAIL, "long prompts: probabilities are .* nat"),
    Case("coarse-weights", "reference", FAIL, "probabilities are .* nat"),
)  # fmt: skip
