"""The lock's measurements after a build in which upstream's wheel provided some of the extensions."""

import msgspec
from http_index import Index
from native_kit import native_tables, offer_toolkit

from sparkwright.lock.native import Binary, ExtensionSpec
from sparkwright.pipeline.moves import with_measured

MEMBERS = {name: f"vllm/{name}.abi3.so" for name in ("_C", "_moe_C", "_new")}
OLD = msgspec.structs.replace(
    native_tables(offer_toolkit(Index())),
    extensions={name: ExtensionSpec(member=member) for name, member in MEMBERS.items()},
    binaries={
        MEMBERS["_C"]: Binary(cubins={"sm_121a": 70, "sm_89": 1}, why="INT8 with zero points"),
        MEMBERS["_moe_C"]: Binary(cubins={"sm_121a": 30}),
        "vllm/gone.abi3.so": Binary(),
    },
    costs={"_C/a.cu": (900.0, 5000), "_moe_C/b.cu": (9.0, 90)},
    measured="1.1.0",
)
MOE = {MEMBERS["_moe_C"]: Binary(cubins={"sm_121a": 31})}


def test_what_upstream_provided_keeps_its_entries_and_their_release():
    found = with_measured(OLD, {"_moe_C"}, MOE, {"_moe_C/b.cu": (7.0, 70)})
    assert found.binaries == {**MOE, MEMBERS["_C"]: OLD.binaries[MEMBERS["_C"]]}
    assert found.costs == {"_C/a.cu": (900.0, 5000), "_moe_C/b.cu": (7.0, 70)}
    assert (found.measured, found.is_measured) == ("1.1.0", False)
    again = with_measured(msgspec.structs.replace(OLD, measured=""), {"_moe_C"}, MOE, {})
    assert again.is_measured


def test_once_all_are_compiled_nothing_older_is_left():
    whole = {member: Binary(cubins={"sm_121a": 1}) for member in MEMBERS.values()}
    found = with_measured(OLD, set(MEMBERS), whole, {"_new/c.cu": (6.0, 60)})
    assert (found.binaries, found.costs) == (whole, {"_new/c.cu": (6.0, 60)})
    assert (found.measured, found.is_measured) == ("", True)
