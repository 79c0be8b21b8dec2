"""The files of a service: units that systemd takes, the guide's compose file, and a private key."""

import re
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from compose_spec import PyCompose

from sparkwright.base.errors import ConfigError, NewerFormatError, UnknownNameError
from sparkwright.base.process import run as process
from sparkwright.cli import service
from sparkwright.cli.service import command
from sparkwright.engine.environment import OfferedWheel
from sparkwright.engine.server.lifecycle import BOOT_S
from sparkwright.recipes.recipe import recipes
from sparkwright.serve.service.change import Slots
from sparkwright.serve.service.files import (
    apply_plan,
    command_line,
    make_key,
    plan_install,
    uninstall,
    unit_text,
)
from sparkwright.serve.service.model import Scope, ServiceOptions, ServicePlaces, ServiceRecord, load_record
from sparkwright.serve.warmup import LIMIT_S

ROOT = Path(__file__).parents[3]
RECIPE = "qwen3.6-27b-nvfp4-kv-dflash"
SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
HOSTILE = '/srv/a b%n"$HOME\\'


def options(scope: Scope = "system", **changes: Any) -> ServiceOptions:
    made = ServiceOptions(name="chat", recipe=RECIPE, scope=scope, program="/bin/true")
    return msgspec.structs.replace(made, **changes)


def places(home: Path = Path("/home/ada"), scope: Scope = "system") -> ServicePlaces:
    return ServicePlaces.of("chat", scope, home)


def directives(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def check_units(*paths: Path) -> str:
    """Return what ``systemd-analyze verify`` says of the units *paths*; empty if nothing."""
    done = process.run(
        ["systemd-analyze", "verify", "--man=no", *paths], timeout=60, accept=tuple(range(256))
    )
    said = f"{done.text}\n{done.stderr}".splitlines()
    return "\n".join(line for line in said if any(path.name in line for path in paths))


@SYSTEMD
@pytest.mark.parametrize("scope", ["system", "user"])
def test_systemd_takes_the_unit_of_every_recipe(tmp_path: Path, scope: Scope) -> None:
    paths = []
    for recipe in recipes():
        paths.append(tmp_path / f"sparkwright-{recipe}.service")
        paths[-1].write_text(unit_text(options(scope, recipe=recipe, models=HOSTILE), places(scope=scope)))
    assert check_units(*paths) == ""


@SYSTEMD
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("WatchdogSec=", "WatchdogSecs=", "Unknown key name|Unknown key"),
        ("OOMPolicy=kill", "OOMPolicy=maybe", "Failed to parse OOM policy"),
        ("Restart=on-failure", "Restart=perhaps", "Failed to parse"),
        ("ExecStart=/bin/true", "ExecStart=/nowhere/at-all", "not executable"),
    ],
)
def test_a_broken_unit_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "sparkwright-chat.service"
    text = unit_text(options(), places())
    assert old in text
    path.write_text(text.replace(old, new))
    assert re.search(said, check_units(path))


@pytest.mark.parametrize("scope", ["system", "user"])
def test_the_unit_says_what_a_card_and_a_reboot_need(scope: Scope) -> None:
    text = unit_text(options(scope), places(scope=scope))
    found = directives(text)
    assert found["Type"] == ["notify"]
    assert found["WatchdogSec"] == ["3min"]
    assert found["Restart"] == ["on-failure"]
    assert {"2", "10", "76"} <= set(found["RestartPreventExitStatus"][0].split())
    assert "77" not in found["RestartPreventExitStatus"][0].split()
    assert found["LimitMEMLOCK"] == ["infinity"]
    assert int(found["OOMScoreAdjust"][0]) > 0
    assert found["WantedBy"] == ["multi-user.target" if scope == "system" else "default.target"]
    # Each of these would keep CUDA, or its compilers, from working.
    assert not {"PrivateDevices", "MemoryDenyWriteExecute", "SystemCallFilter", "DevicePolicy"} & found.keys()


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicePlaces:
    """The places of a user's service."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return places(tmp_path, "user")


def test_the_key_reaches_the_unit_as_a_credential_alone(where: ServicePlaces, tmp_path: Path) -> None:
    assert make_key(where.key)
    key = where.key.read_text().strip()
    plan = plan_install(options("user"), where)
    apply_plan(plan, run_commands=False)
    assert stat.S_IMODE(where.key.stat().st_mode) == 0o600
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != where.key]
    assert len(written) == 2
    assert not any(key in path.read_text() for path in written)
    assert not any(key in word for words in plan.commands for word in words)
    found = directives(where.unit.read_text())
    assert found["LoadCredential"] == [f"api-key:{where.key}"]
    assert found["ExecStart"][0].endswith("--api-key-file %d/api-key")


def test_a_key_is_made_once_and_an_open_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "chat.key"
    assert make_key(path)
    first = path.read_text()
    assert not make_key(path)
    assert path.read_text() == first
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="cannot be used"):
        make_key(path)


def test_units_and_images_give_a_boot_the_time_that_serve_gives_it() -> None:
    (limit,) = directives(unit_text(options(), places()))["TimeoutStartSec"]
    assert limit == f"{BOOT_S + LIMIT_S:.0f}s", "and more while a model is fetched"
    (hours,) = re.findall(r"start-period=(\d+)h", (ROOT / "ci/Containerfile").read_text())
    assert int(hours) >= 12, "a health check has no way to wait for a download"


def test_words_of_the_command_line_stay_words() -> None:
    told = options(settings=("chat-template=/srv/a b.jinja", "seed=$X%n"), use="many", sidecars_gib=20.5)
    words = command_line(told, places())
    line = directives(unit_text(told, places()))["ExecStart"][0]
    assert words[words.index("--set") + 1] == "chat-template=/srv/a b.jinja"
    assert words[words.index("--sidecars") + 1] == "20.5"
    assert "--sidecars" not in command_line(options(), places())
    assert '"chat-template=/srv/a b.jinja"' in line
    assert " seed=$$X%%n " in line
    variables = directives(unit_text(options(models=HOSTILE), places()))["Environment"]
    assert '"HF_HOME=/srv/a b%%n\\"$HOME\\\\"' in variables
    with pytest.raises(ConfigError, match="cannot stand in a unit"):
        options(settings=("a=b\nExecStartPre=/bin/sh",))
    with pytest.raises(ConfigError, match="cannot be the name"):
        options(name="../chat")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "A"])
def test_what_is_no_name_of_a_service_removes_no_folder(name: str, tmp_path: Path, monkeypatch) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    other = tmp_path / "sparkwright" / "services" / "chat" / "service.json"
    other.parent.mkdir(parents=True)
    other.touch()
    for words in (("uninstall", name, "--purge"), ("status", name), ("upgrade", name)):
        if words != ("status", ""):  # of all
            with pytest.raises(ConfigError, match="cannot be the name of a service"):
                run(*words, "--user")
    assert other.exists()
    with pytest.raises(UnknownNameError, match="no service 'gone'"):
        run("uninstall", "gone", "--user")


def test_the_guide_s_compose_file_follows_the_specification() -> None:
    (text,) = re.findall(r"```yaml\n(services:.*?)```", (ROOT / "docs/service.md").read_text(), re.DOTALL)
    compose = PyCompose.from_yaml(text)
    compose.validate()
    server = yaml.safe_load(text)["services"]["server"]
    assert server["command"][0] in recipes()
    assert server["environment"]["SPARKWRIGHT_API_KEY_FILE"] == "/run/secrets/api_key"
    assert server["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    with pytest.raises(Exception, match="stop_grace"):
        PyCompose.from_yaml(text.replace("stop_grace_period", "stop_grace"))


def test_variables_of_the_user_s_survive_a_second_installation(where: ServicePlaces) -> None:
    apply_plan(plan_install(options("user"), where), run_commands=False)
    where.variables.write_text("HF_TOKEN=abc\n")
    apply_plan(plan_install(options("user", port=9000), where), run_commands=False)
    assert where.variables.read_text() == "HF_TOKEN=abc\n"
    assert "9000" in where.unit.read_text()
    uninstall(where, run_commands=False)
    assert not where.unit.exists()
    assert where.variables.exists()


def test_a_record_comes_back_and_a_newer_one_is_refused(where: ServicePlaces) -> None:
    with pytest.raises(UnknownNameError, match="no service 'chat'"):
        load_record(where)
    told = options(settings=("seed=1",), sidecars_gib=8.0)
    record = ServiceRecord(told, current="a", wheels={"a": "x.whl"})
    record.write(where.record)
    assert load_record(where) == record
    where.record.write_text('{"format": 2}')
    with pytest.raises(NewerFormatError):
        load_record(where)
    where.record.write_text("[]")
    with pytest.raises(ConfigError):
        load_record(where)


def test_environments_are_pointed_to_and_pruned(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    for name in ("one", "two", "three"):
        slots.place(name).mkdir(parents=True)
    assert slots.current == ""
    slots.point("one")
    slots.point("two")
    assert slots.current == "two"
    assert slots.link.resolve() == slots.place("two").resolve()
    assert slots.prune({"one"}) == ("three",)
    assert slots.place("two").is_dir()


# The command ---------------------------------------------------------------------------------------------


def run(*words: str) -> Any:
    return CliRunner().invoke(command, list(words), catch_exceptions=False)


def test_a_dry_run_shows_everything_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run("install", RECIPE, "--user", "--dry-run")
    assert result.exit_code == 0
    for word in ("Type=notify", "LoadCredential", "systemctl --user daemon-reload", "(mode 0600)"):
        assert word in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_of_rehearsals_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be installed as a service"):
        run("install", "rehearsal-smollm2")


def test_what_root_runs_stays_root_s() -> None:
    where = places()
    plan = plan_install(options(run_as="ada"), where)
    owned = [words for words in plan.commands if "ada" in words or "ada:" in words]
    named = {word for words in owned for word in words if word.startswith("/var/")}
    assert named == {str(path) for path in where.written}
    assert set(directives(unit_text(options(), where))["ReadWritePaths"]) == named
    assert ("runuser", "-u", "ada", "--", "/bin/true", "--version") in plan.commands
    assert plan.afterwards == (("systemctl", "enable", where.unit_name),)


def test_a_recipe_of_two_machines_is_refused() -> None:
    (name, *_) = (recipe.name for recipe in recipes().values() if recipe.nodes > 1)
    with pytest.raises(ConfigError, match="cannot be installed as a service"):
        run("install", name, "--dry-run")


def test_an_upgrade_serves_and_checks_what_was_installed(where, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    told = options("user", settings=("max-num-seqs=3", 'served-model-name=["a", "b"]'), sidecars_gib=8.0)
    ServiceRecord(told).write(where.record)
    seen: list[Any] = []
    offered = OfferedWheel(tmp_path / "x.whl")
    monkeypatch.setattr(service, "_wheel", lambda asked, recipe, channel, offline: offered)
    monkeypatch.setattr(service, "_prepared", lambda places, wheel, recipe, asked, offline: "slot")
    monkeypatch.setattr(
        service, "_change", lambda places, record, slot, wheel, recipe: seen.append((record, recipe))
    )
    assert run("upgrade", "chat", "--user").exit_code == 0
    ((record, recipe),) = seen
    assert (recipe.flags["max-num-seqs"], recipe.served_names) == (3, ("a", "b"))
    assert record.options.sidecars_gib == 8.0
