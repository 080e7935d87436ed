"""What is installed is what was tested."""

import re
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import weft

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)")
FLOOR = re.compile(r"([A-Za-z0-9._-]+)>=([A-Za-z0-9.!+_-]+)")


def test_the_package_is_typed() -> None:
    assert files("weft").joinpath("py.typed").is_file()


def test_the_version_is_the_distributions() -> None:
    assert weft.__version__ == version("weft-agents")


def test_constraints_hold_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []


def test_every_floor_is_the_pinned_version() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = config["project"]
    wanted = [*project["dependencies"], *config["build-system"]["requires"]]
    wanted += [dep for extra in project["optional-dependencies"].values() for dep in extra]
    wanted = [dep for dep in wanted if not dep.startswith("weft-agents[")]
    floors = dict(FLOOR.fullmatch(dep).groups() for dep in wanted)  # type: ignore[union-attr]  # a miss fails here
    assert floors == {name: pins.get(name) for name in floors}
