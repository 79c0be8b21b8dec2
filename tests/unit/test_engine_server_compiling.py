"""The time in which FlashInfer's compilers leave files."""

from pathlib import Path

from sparkwright.engine.server.compiling import FlashInferBuild

BLOCK = b"x" * 8192


def test_compilers_go_on_where_files_come_that_were_not_there(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "flashinfer" / "0.6" / "121a" / "moe"
    cache.mkdir(parents=True)
    (cache / "old.o").touch()
    build = FlashInferBuild({"FLASHINFER_WORKSPACE_BASE": str(tmp_path)})
    assert not build.look(5.0), "what was here before was not compiled now"
    (cache / "a.o").touch()
    assert not build.look(6.0), "looks that follow each other closely are one"
    assert build.look(10.0)
    (cache / "a.o").write_bytes(BLOCK)
    (cache / "moe.lock").touch()
    assert not build.look(15.0), "no new file of a kernel"
    (cache / "a.o").unlink()
    assert not build.look(20.0)
    (cache / "a.o").touch()
    assert not build.look(25.0), "it began again"
