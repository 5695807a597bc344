"""`longdraft bench ...`: a command for each thing that can be measured."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from longdraft.cli.bench import old_spelling
from longdraft.cli.bench.measure_acceptance import MeasureAcceptance
from longdraft.cli.bench.measure_peers import MeasurePeers, MeasurePeersTasks
from longdraft.cli.bench.measure_shapes import MeasureShapeCost, MeasureShapeSteps
from longdraft.cli.bench.measure_speed import MeasureCost, MeasureSpeed
from longdraft.cli.bench.measure_steps import MeasureSteps
from longdraft.cli.bench.measure_tasks import MeasureTasks
from longdraft.cli.option_groups import command_of

MEASUREMENTS: dict[str, type[Any]] = {
    "speed": MeasureSpeed,
    "cost": MeasureCost,
    "acceptance": MeasureAcceptance,
    "steps": MeasureSteps,
    "tasks": MeasureTasks,
    "peers": MeasurePeers,
    "peers-tasks": MeasurePeersTasks,
    "shape-cost": MeasureShapeCost,
    "shape-steps": MeasureShapeSteps,
}


class BenchGroup(TyperGroup):
    """The measurements; a line in the old spelling is read as the new one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if old_spelling.is_old(args):
            args = old_spelling.translated(args, ctx, MEASUREMENTS)
        return super().parse_args(ctx, args)


app = typer.Typer(cls=BenchGroup, add_completion=False, help="Measure methods side by side.")
for name, options in MEASUREMENTS.items():
    app.command(name)(command_of(options))
