"""Nights for tests of reports and proposals: findings of every kind, and text that wants to do harm."""

from typing import Any

from sparkwright.merge.report import Hazard, OutcomeKind
from sparkwright.nightly.model import (
    CarryNight,
    Judgement,
    Mark,
    Night,
    NightBuild,
    NightCheck,
    NightVerdict,
    Standing,
    TargetNight,
    UpstreamCommit,
    UpstreamTarget,
)

EVIL = (
    "<script>alert(1)</script> ![x](https://evil.example/x.png) @everyone `code` | fixes #7 \x1b[31m\u202e"
    "\n# Head"
)
OUTCOMES = {
    Judgement.NEEDED: OutcomeKind.APPLIED,
    Judgement.DECLARED: OutcomeKind.SUPERSEDED,
    Judgement.NOT_NEEDED: OutcomeKind.APPLIED,
    Judgement.CONFLICT: OutcomeKind.CONFLICT,
    Judgement.WRONG: OutcomeKind.APPLIED,
    Judgement.NOT_ABSORBED: OutcomeKind.ABSORBED,
    Judgement.BROKEN_PROBE: OutcomeKind.APPLIED,
    Judgement.REACH_LOST: OutcomeKind.APPLIED,
    Judgement.NOT_JUDGED: OutcomeKind.REFUSED,
}


def culprit(**changes: Any) -> UpstreamCommit:
    told: dict[str, Any] = {
        "commit": "8a" * 20,
        "subject": "[Core] Give clamp a lower bound (#45544)",
        "author": "A. Contributor",
        "date": "2026-11-20T09:30:00+00:00",
        "files": ("vllm/clamp.py",),
        "before": OutcomeKind.APPLIED,
        "after": OutcomeKind.CONFLICT,
        "pull": 45544,
    }
    return UpstreamCommit(**{**told, **changes})


def carry(name: str, judgement: Judgement = Judgement.NEEDED, **changes: Any) -> CarryNight:
    """Return a carry with that judgement, and what the night's core says about one: evidence if it is red."""
    told: dict[str, Any] = {
        "name": name,
        "outcome": OUTCOMES[judgement],
        "judgement": judgement,
        "finding": f"{name}(99) is not 10",
    }
    if judgement.standing is Standing.RED:
        told |= {
            "red_since": "2026-11-20",
            "holds": "1.2.0",
            "culprit": culprit(after=OUTCOMES[judgement]),
            "bisect_command": f"sparkwright bisect 1.2.0 1.3.0 --judge 'probe {name}'",
        }
    return CarryNight(**{**told, **changes})


def target(version: str = "1.3.0", **changes: Any) -> UpstreamTarget:
    told = {"kind": "release", "version": version, "tree": "7" * 40, "commit": "c" * 40, "wheel": True}
    return UpstreamTarget(**{**told, **changes})


def found(*carries: CarryNight, at: UpstreamTarget | None = None, **changes: Any) -> TargetNight:
    told = {"previous": target("1.2.0"), "merged": "9" * 40, "carries": carries}
    return TargetNight(target=at or target(), **{**told, **changes})


def built(**changes: Any) -> NightBuild:
    told: dict[str, Any] = {
        "status": "built",
        "path": "/srv/dist/vllm-1.3.0+spark.2-cp38-abi3-linux_aarch64.whl",
        "version": "1.3.0+spark.2",
        "sha256": "ab" * 32,
        "size": 412_345_678,
        "audited": True,
    }
    return NightBuild(**{**told, **changes})


def night(*targets: TargetNight, **changes: Any) -> Night:
    told: dict[str, Any] = {
        "id": "12",
        "date": "2026-11-22",
        "patchset": "spark",
        "pin": "1.2.0",
        "verdict": NightVerdict.GREEN,
        "targets": targets,
        "seconds": 171.0,
    }
    return Night(**{**told, **changes})


def strip(*judgements: Judgement) -> tuple[Mark, ...]:
    return tuple(
        Mark(date=f"2026-11-{day:02}", target="1.3.0", judgement=one) for day, one in enumerate(judgements, 1)
    )


def eventful() -> Night:
    """Return a night that has something of every kind."""
    good, bad = Judgement.NEEDED, Judgement.CONFLICT
    carries = [
        carry(
            f"carry-{judgement}",
            judgement,
            previous=OutcomeKind.APPLIED,
            history=strip(good, good, judgement, judgement),
        )
        for judgement in Judgement
    ]
    carries[3] = carry(
        "carry-conflict",
        bad,
        alone=OutcomeKind.APPLIED,
        conflicts=("vllm/clamp.py",),
        previous=OutcomeKind.APPLIED,
        hazards=(
            Hazard(kind="both-sides", path="vllm/clamp.py", name="Clamp.low"),
            Hazard(kind="signature", path="vllm/align.py", name="align"),
        ),
        history=strip(*[good] * 26, bad, good, bad, bad, bad, bad),
    )
    release = found(
        *carries,
        build=built(left_out=("carry-conflict", "carry-broken-probe")),
        rehearsal=NightCheck(status="passed", report="/srv/rehearsal/report.html"),
    )
    tip = target("1.3.1.dev7+g8a8a8a8a8", kind="commit", commit="8a" * 20, wheel=False, history=True)
    commit = found(
        *(carry(one.name) for one in carries),
        at=tip,
        build=NightBuild(status="failed", reason="upstream has no wheel of that commit for aarch64"),
    )
    return night(
        release,
        commit,
        verdict=NightVerdict.NEEDS_PERSON,
        reasons=("carry-conflict conflicts on 1.3.0", "carry-not-needed is not needed on 1.3.0: drop it"),
        notes=("the index of nightly wheels could not be asked: no network",),
    )  # fmt: skip


def hostile() -> Night:
    """Return a night whose every text from upstream is harmful."""
    bad = carry(
        "clamp",
        Judgement.CONFLICT,
        detail=EVIL,
        finding=EVIL,
        conflicts=(EVIL,),
        culprit=culprit(subject=EVIL, author=EVIL, files=(EVIL,), date=EVIL, pull=7),
        hazards=(Hazard(kind="both-sides", path=EVIL, name=EVIL),),
        bisect_command=EVIL,
        holds=EVIL,
        history=strip(Judgement.NEEDED, Judgement.CONFLICT),
    )
    one = found(
        bad,
        at=target(origin=EVIL),
        build=NightBuild(status="failed", reason=EVIL),
        rehearsal=NightCheck(status="failed", reason=EVIL, report="javascript:alert(1)"),
        tests=NightCheck(status="failed", reason=EVIL, flaky=(EVIL,)),
    )
    return night(one, verdict=NightVerdict.NEEDS_PERSON, reasons=(EVIL,), notes=(EVIL,), pin=EVIL)
