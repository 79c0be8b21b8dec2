"""Compile the units of a build on other machines: `compile_elsewhere` takes the place of compilers here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sparkwright.base.config import Model, convert
from sparkwright.base.errors import ClusterError, CompileError, ProcessError, SparkwrightError, error_class
from sparkwright.base.events import emit, task
from sparkwright.distributed.cluster import Cluster
from sparkwright.distributed.tasks import Done, StoredFile, Task, share_file, share_json, shared
from sparkwright.git.remotes import check_object_id
from sparkwright.git.repository import Repository
from sparkwright.git.trees import pack_tree, unpack_tree
from sparkwright.lock.model import Lock
from sparkwright.native.build import Builder, Configured, compile_job, depfile_of, log_name
from sparkwright.native.compile import Finished, run_jobs
from sparkwright.native.configure import Reader, Workspace, open_workspace
from sparkwright.native.host import isolated
from sparkwright.native.model import Cost, Inputs, Target, Toolchain, Unit
from sparkwright.native.schedule import JobLimits
from sparkwright.native.toolchain import configure_environment, prepare_toolchain
from sparkwright.native.units import UnitFiles, UnitRecord, adopt_record, record_object, unit_key, unit_record
from sparkwright.store.paths import Store
from sparkwright.upstream.releases import Access

_BATCH_S = 90.0  # of CPU time: a batch lays the sources out once


class UnitsRequest(Model, frozen=True):
    """Units to compile, one after the other."""

    lock: Lock
    machine: str
    arch: str
    toolchain: str
    tree: str
    units: tuple[tuple[Unit, Cost], ...]
    isolate: bool = False


class UnitResult(Model, frozen=True):
    """A unit that compiled, or was refused by the compiler.

    Attributes:
        record: the record of the unit cache; `None` where the unit cannot be cached.
        error: class and parts of the error, and the compiler's output; empty if it compiled.
    """

    name: str
    sha256: str = ""
    size: int = 0
    cost: Cost = Cost(seconds=0.0, mib=0)
    seconds: float = 0.0
    record: UnitRecord | None = None
    error: tuple[str, ...] = ()


def compile_elsewhere(  # noqa: PLR0917 - as `CompileElsewhere`
    cluster: Cluster,
    builder: Builder,
    inputs: Inputs,
    known: Configured,
    units: Sequence[Unit],
    expected: Mapping[str, Cost],
    learn: Callable[[str, Cost], None],
) -> dict[str, str]:
    """Return the objects of *units*: output path to SHA-256 in the store.

    *learn* is called with each unit's name and measured cost.

    Raises:
        CompileError, NotEnoughMemoryError, StorageError, ToolError: as compiling here does.
        ClusterError: no machine can be had, or several were lost over one unit.
    """
    store = cluster.store
    by_name = {unit.name: unit for unit in units}
    objects: dict[str, str] = {}

    def take(done: Done) -> bool:
        """Take the objects of a batch; return if all of it is there, and of the files here."""
        results = convert(done.value, tuple[UnitResult, ...])
        if {one.name for one in results} != batches[done.name]:
            return False
        taken = [take_one(one, done.machine) for one in results]  # what is good is kept in any case
        return all(taken)

    def take_one(made: UnitResult, machine: str) -> bool:
        unit = by_name[made.name]
        if unit.output in objects:
            return True
        if made.error:
            raise _failure(builder.logs, made, machine)
        # Of a repeated unit the object is the same, and it may have been missing the first time.
        if store.find_file(made.sha256, size=made.size, fresh=True) is None:
            return False
        chain = inputs.toolchain.key
        if made.record is not None and not adopt_record(
            store, unit, known.files, chain, record=made.record, sha256=made.sha256
        ):
            return False
        objects[unit.output] = made.sha256
        learn(unit.name, made.cost)
        emit(
            "compile.finished",
            unit=unit.name,
            machine=machine,
            seconds=round(made.seconds, 3),
            cpu_seconds=round(made.cost.seconds, 3),
            mib=made.cost.mib,
        )
        return True

    sent = _tasks(cluster.store, builder, inputs, known, units, expected=expected)
    batches = {one.name: names for one, names in sent}
    cluster.run([one for one, _ in sent], take, title="compile", unit="batches")
    return objects


def _tasks(
    store: Store,
    builder: Builder,
    inputs: Inputs,
    known: Configured,
    units: Sequence[Unit],
    *,
    expected: Mapping[str, Cost],
) -> list[tuple[Task, set[str]]]:
    """Return the tasks that compile *units*, each with the names of its units."""
    pack = packed(store, builder.repository, known.tree)
    tasks = []
    for batch in _batches(units, expected):
        request = UnitsRequest(
            lock=builder.lock,
            machine=inputs.target.machine,
            arch=inputs.target.arch,
            toolchain=inputs.toolchain.key,
            tree=known.tree,
            units=tuple((unit, expected[unit.name]) for unit in batch),
            isolate=bool(builder.isolation),
        )
        one = Task(
            name=batch[0].name,
            words=("task", "units"),
            files=(share_json(store, request), pack),
            seconds=sum(expected[unit.name].seconds for unit in batch),
            mib=max(expected[unit.name].mib for unit in batch),
        )
        tasks.append((one, {unit.name for unit in batch}))
    return tasks


def _failure(logs: Path, made: UnitResult, machine: str) -> SparkwrightError:
    kind, what, because, next_step, text = made.error
    log = logs / log_name(made.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    found = error_class(kind, CompileError)
    return found(what, because=f"on {machine}: {because}\nlog: {log}", next_step=next_step)


def _batches(units: Sequence[Unit], expected: Mapping[str, Cost]) -> Iterator[list[Unit]]:
    """Yield *units* in batches of similar memory, of about `_BATCH_S` seconds each."""
    batch: list[Unit] = []
    for unit in sorted(units, key=lambda one: (-expected[one.name].mib, one.name)):
        batch.append(unit)
        if sum(expected[one.name].seconds for one in batch) >= _BATCH_S:
            yield batch
            batch = []
    if batch:
        yield batch


def compile_units(request: UnitsRequest, access: Access) -> list[UnitResult]:
    """Compile the units of *request* on this machine.

    Raises:
        ClusterError: the toolchain here is another one.
        SparkwrightError: the machine cannot compile.
    """
    target = Target(request.machine, request.arch)
    chain = prepare_toolchain(request.lock, target, access)
    if chain.key != request.toolchain:
        parts = ", ".join(f"{name} {version}" for name, version in sorted(chain.parts.items()))
        raise ClusterError(
            "its toolchain is another one",
            because=parts,
            next_step="install the compiler and the Python of the machine that asks there",
        )
    files = UnitFiles.of(access.repository, request.tree)
    with open_workspace(access.store, access.repository, request.tree, chain) as work:
        env = configure_environment(chain, target, work.root, request.lock)
        return [
            _compiled(access, request, chain, work, files, env, unit, expected)
            for unit, expected in request.units
        ]


def _compiled(  # noqa: PLR0917
    access: Access,
    request: UnitsRequest,
    chain: Toolchain,
    work: Workspace,
    files: UnitFiles,
    env: Mapping[str, str],
    unit: Unit,
    expected: Cost,
) -> UnitResult:
    log, prefix = Path("log-of-unit").absolute(), isolated(()) if request.isolate else ()
    job = compile_job(work, unit, env, prefix=prefix, log=log, expected=expected)
    done: list[Finished] = []
    try:
        # How many run at once is the scheduler's business: it knows what each one takes.
        run_jobs([job], on_done=done.append, limits=JobLimits(jobs=1, reserve_mib=0))
    except CompileError as error:
        text = log.read_text(errors="replace")
        parts = (type(error).__name__, error.what, error.because, error.next_step, text)
        return UnitResult(name=unit.name, error=parts)
    store, output, size = access.store, job.output, job.output.stat().st_size
    sha256, cached = record_object(
        store, unit, files, chain.key,
        reader=Reader(work.root, chain), depfile=depfile_of(work, unit),
        object_path=output, cost=done[0].cost,
    )  # fmt: skip
    record = unit_record(store, unit_key(unit, files, chain.key)) if cached else None
    if not cached:
        store.share(sha256)
    return UnitResult(
        name=unit.name, sha256=sha256, size=size, cost=done[0].cost, seconds=done[0].seconds, record=record
    )


# Trees that go to other machines ------------------------------------------------------------------

_KIND = "tree-pack"
_FOLDER = "packs"


def packed(store: Store, repository: Repository, tree: str) -> StoredFile:
    """Return a pack of *tree* for a task."""
    name = f"{_FOLDER}/{tree}"
    known = (store.find_record(_KIND, tree) or {}).get("sha256")
    if isinstance(known, str) and (path := store.find_file(known, remote=False)):
        return shared(store, name, known, path.stat().st_size)
    with task("pack the sources"), store.scratch() as scratch:
        pack_tree(repository, tree, scratch / "pack")
        made = share_file(store, scratch / "pack", name)
    store.put_record(_KIND, tree, {"sha256": made.sha256})
    return made


def unpack_all(repository: Repository) -> None:
    """Take the tree of a task, whose working folder this process is in, into *repository*, if it has one.

    Raises:
        ClusterError: a pack is damaged.
        RefError: a pack is not named after a tree.
    """
    for path in Path(_FOLDER).glob("*"):
        tree = check_object_id(path.name)
        if repository.has(tree):
            continue
        try:
            unpack_tree(repository, path, tree)
        except (ProcessError, OSError) as error:
            because = error.because if isinstance(error, ProcessError) else str(error)
            raise ClusterError("the pack of a tree is damaged", because=because) from error
