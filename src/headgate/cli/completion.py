"""`headgate completion`: what a shell needs to complete commands, options and choices."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from cyclopts import Parameter

# The script defines a function, which zsh calls if the file has the same name. Ours has the name of the command.
_ZSH_END: Final = """
if (( $+compstate )); then  # called to complete
  _cyclopts_headgate "$@"
else  # sourced
  compdef _cyclopts_headgate headgate
fi
"""


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
    print(app.generate_completion(shell=shell) + (_ZSH_END if shell == "zsh" else ""))
