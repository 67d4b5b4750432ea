"""A group of commands that suggests the command that was probably meant."""

from __future__ import annotations

import click

from cordwood.wording import nearest


class SuggestingGroup(click.Group):
    """Reports an unknown command together with the nearest existing one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with.

        Raises:
            click.UsageError: If there is none of that name; suggests one.
        """
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        meant = nearest(name, self.list_commands(ctx))
        hint = f"; did you mean {meant}?" if meant else "."
        raise click.UsageError(f"there is no command {name}{hint}", ctx)
