"""`longdraft import`, `export-drafter` and `pack-drafter`: convert drafters between layouts."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import Annotated

import typer

from longdraft.cli.option_groups import Rope
from longdraft.errors import InputError

Target = Annotated[
    str,
    typer.Option("-m", "--model", help="The drafter's target: a folder, a .gguf file or a Hub id."),
]


def _apart(folder: Path, out: Path) -> Path:
    """The folder to read, which is not the one to write. Raises InputError."""
    folder = folder.expanduser()
    if realpath(folder) == realpath(out.expanduser()):
        raise InputError(f"--out is the folder to read, {out}: give another folder")
    return folder


def import_drafter(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The released folder, with weights and config.json."),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the converted drafter, to be given to --drafter.")
    ],
    model: Target = "bundled",
    rope: Rope = None,
    any_target: Annotated[
        bool,
        typer.Option(
            "--any-target",
            help="Accept a drafter whose embedding or output table is not this target's.",
        ),
    ] = False,
) -> None:
    """Import a GLIDE block of LongSpec, heads of TokenSwift or Medusa, a layer of EAGLE-2 or
    EAGLE-3, or a block of DFlash, also as `speculators` stores them.

    The kind is recognized by the names and shapes of the weights, which must all be known and fit
    the target. No code from the folder is run.
    """
    from longdraft.core.places import new_folder
    from longdraft.drafters.checkpoint import FILES
    from longdraft.drafters.kinds import import_released
    from longdraft.models.loading import load_lm, quiet

    quiet(None)
    source = _apart(folder, out)
    place = new_folder(out, replaced=FILES)
    made = import_released(source, place, load_lm(model, rope=rope), any_target)
    typer.echo(f"{made['kind']}, {made['parameters']} parameters in {made['dtype']} -> {out}")


def export_drafter(
    folder: Annotated[
        Path, typer.Argument(metavar="DRAFTER", help="The folder of a drafter: eagle3 or dflash.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the drafter in the other layout.")],
    model: Target = "bundled",
    rope: Rope = None,
    any_target: Annotated[
        bool,
        typer.Option(
            "--any-target", help="Write it for a target other than the one it was trained for."
        ),
    ] = False,
) -> None:
    """Write a drafter as the project `speculators` stores it, which vLLM runs; its weights stay
    unchanged.

    `longdraft import` reads such folders.
    """
    from longdraft.core.places import new_folder
    from longdraft.drafters import kinds
    from longdraft.drafters.checkpoint import FILES
    from longdraft.models.loading import load_lm, quiet

    quiet(None)
    source = _apart(folder, out)
    place = new_folder(out, replaced=FILES)
    target = load_lm(model, "float32", rope=rope)
    made = kinds.export_drafter(source, place, target, any_target)
    typer.echo(f"{made['kind']}, {made['parameters']} parameters in {made['dtype']} -> {out}")


def pack_drafter(
    folder: Annotated[
        Path, typer.Argument(metavar="DRAFTER", help="The folder of a trained drafter.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the same drafter in 8 bits, to be given to --drafter.")
    ],
) -> None:
    """Store a drafter's matrices in 8 bits, with a scale for each row: half the size of bfloat16.

    It is used in the target's dtype as before, so it is as fast; drafts may differ a little, the
    output never does.
    """
    from longdraft.models.eight_bits import store

    before, after = store(_apart(folder, out), out)
    typer.echo(f"{before / 1e6:.1f} MB of weights, {after / 1e6:.1f} MB in 8 bits -> {out}")
