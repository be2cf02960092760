"""`headgate completion`: what a shell needs to complete commands, options and choices."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter


def completion_command(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to complete in.")],
) -> None:
    """Print the completion script of a shell.

    bash: `headgate completion bash > ~/.local/share/bash-completion/completions/headgate`.
    zsh: `headgate completion zsh > ~/.zfunc/_headgate`, with `~/.zfunc` in `fpath` before `compinit`.
    fish: `headgate completion fish > ~/.config/fish/completions/headgate.fish`.
    """
    from headgate.cli import app

    for name in [*app]:
        try:
            app[name]  # imports it
        except ImportError:  # only the client is installed: the commands of the server cannot run
            del app[name]
    print(app.generate_completion(shell=shell))
