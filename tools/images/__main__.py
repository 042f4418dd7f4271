"""The command line: `build` and `archive` for the images, `venv` for the engine's content without an image."""

import argparse
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from tools.cluster.state import exclusive

from .builders import find_builder
from .console import ImagesError, say
from .engine_venv import engine_venv
from .recipes import CACHE, RECIPES, Recipe


def build(recipe: Recipe) -> Path:
    """The image as a docker-archive file; made only when the cache has none of the same content."""
    archive = recipe.archive()
    if archive.exists():
        return archive
    with locked():
        if archive.exists():
            return archive
        builder = find_builder()
        log = CACHE / "logs" / f"{recipe.name}.log"
        log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            context, saved = Path(folder, "context"), Path(folder, "image.tar")
            recipe.copy_context(context)
            builder.build(recipe, context, log)
            builder.save(recipe, saved, log)
            for old in archive.parent.glob(f"{recipe.name}-*.tar"):
                old.unlink()
            saved.rename(archive)
    say(f"{recipe.reference} is in {archive} ({archive.stat().st_size / 1e6:.0f} MB)")
    return archive


def locked() -> AbstractContextManager[None]:
    """One build at a time on this machine, whoever starts it."""
    return exclusive(CACHE / "images" / "lock", "building images")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build images; does nothing for one that is up to date")
    building.add_argument("names", nargs="+", choices=sorted(RECIPES), metavar="NAME", help=", ".join(sorted(RECIPES)))
    archiving = commands.add_parser(
        "archive", help="build an image if need be and print the path of its docker-archive"
    )
    archiving.add_argument("name", choices=sorted(RECIPES), metavar="NAME", help=", ".join(sorted(RECIPES)))
    making = commands.add_parser("venv", help="make the engine's environment on this machine and print its path")
    making.add_argument("name", choices=["engine-cpu"])
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "build":
                for name in arguments.names:
                    build(RECIPES[name])
            case "archive":
                print(build(RECIPES[arguments.name]))
            case "venv":
                with locked():
                    print(engine_venv())
    except ImagesError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
