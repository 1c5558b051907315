"""`bestof completion`: print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from bestof.cli import COMMANDS
from bestof.cli.bench import BENCHES
from bestof.cli.options import parser_of

_EPILOG = """\
Where the shell finds the script, it reads it when it starts:

  bestof completion bash > ~/.local/share/bash-completion/completions/bestof
  bestof completion zsh > ~/.bestof.zsh
  echo 'source ~/.bestof.zsh' >> ~/.zshrc
  bestof completion fish > ~/.config/fish/completions/bestof.fish

The script lists what this version of bestof knows: write it again after an update."""

# With bashcompinit, zsh runs functions for bash.
_BASH = """\
_bestof() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[$((COMP_CWORD - 1))]}}
  local at="" words="" options=""
  ((COMP_CWORD > 1)) && at=${{COMP_WORDS[1]}}
  [[ $at == bench || $at == store ]] && ((COMP_CWORD > 2)) && at+=" ${{COMP_WORDS[2]}}"
  case $at in
{levels}
  esac
  case "$at $before" in
{choices}
  esac
  # What follows a script belongs to the script.
  [[ " ${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}} " == *.py\\ * ]] && options=""
  [[ $word == -* ]] && words=$options
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _bestof bestof
"""
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command. `choices` is empty if any value, or none, may follow."""

    names: tuple[str, ...]
    meaning: str
    valued: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """What may follow the words of a command, such as "" and "bench model"."""

    words: str
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]


def call(argv: Sequence[str]) -> int:
    """Print the script of a shell."""
    shell = make_parser().parse_args(argv).shell
    levels = _levels()
    print(_fish(levels) if shell == "fish" else _bash(levels, zsh=shell == "zsh"), end="")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of("completion", "Complete commands and options in a shell.", _EPILOG)
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"))
    return parser


def _levels() -> list[Level]:
    """Return all levels. A command whose packages are missing has no options."""
    levels = [Level("", tuple((one.name, one.summary) for one in COMMANDS), ())]
    for command in COMMANDS:
        if command.name != "bench":
            levels += _of_module(command.name, command.module)
    levels.append(Level("bench", tuple((one.name, one.summary) for one in BENCHES), ()))
    for bench in BENCHES:
        levels += _of_module(f"bench {bench.name}", bench.module)
    return levels


def _of_module(words: str, module: str) -> list[Level]:
    try:
        return _of(words, import_module(module).make_parser())
    except ImportError:
        return [Level(words, (), ())]


def _of(words: str, parser: argparse.ArgumentParser) -> list[Level]:
    """Return the level of a parser, and those of its subcommands."""
    options, commands, below = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = [(one.dest, one.help or "") for one in action._choices_actions]
            for name, inner in action.choices.items():
                below += _of(f"{words} {name}", inner)
        elif action.choices and not action.option_strings:
            commands = [(str(one), "") for one in action.choices]
        elif action.option_strings:
            meaning = parser._get_formatter()._expand_help(action) if action.help else ""
            choices = tuple(str(one) for one in action.choices or ())
            options.append(
                Option(tuple(action.option_strings), meaning, action.nargs != 0, choices)
            )
    return [Level(words, tuple(commands), tuple(options)), *below]


def _bash(levels: Sequence[Level], *, zsh: bool) -> str:
    cases, choices = [], []
    for level in levels:
        commands = " ".join(name for name, _ in level.commands)
        options = " ".join(name for one in level.options for name in one.names)
        cases.append(f'    "{level.words}") words="{commands}" options="{options}" ;;')
        for one in level.options:
            if one.choices:
                names = " | ".join(f'"{level.words} {name}"' for name in one.names)
                choices.append(f'    {names}) words="{" ".join(one.choices)}" ;;')
    script = _BASH.format(levels="\n".join(cases), choices="\n".join(choices))
    return _ZSH + script if zsh else script


def _fish(levels: Sequence[Level]) -> str:
    lines = []
    for level in levels:
        seen = [f"__fish_seen_subcommand_from {word}" for word in level.words.split()]
        names = " ".join(name for name, _ in level.commands)
        first = [*seen, f"not __fish_seen_subcommand_from {names}"]
        for name, summary in level.commands:
            lines.append(_fish_line(first, "-f", "-a", name, "-d", summary))
        for one in level.options:
            words = [
                word
                for name in one.names
                for word in ("-l" if name.startswith("--") else "-s", name.lstrip("-"))
            ]
            if one.choices:
                words += ["-x", "-a", " ".join(one.choices)]
            elif one.valued:
                words.append("-r")
            lines.append(_fish_line(seen, *words, "-d", one.meaning))
    return "\n".join(lines) + "\n"


def _fish_line(conditions: Sequence[str], *words: str) -> str:
    condition = "; and ".join(conditions)
    return f"complete -c bestof -n {shlex.quote(condition)} {_fish_quoted(words)}"


def _fish_quoted(words: Sequence[str]) -> str:
    """Return words for fish, where a quote within quotes needs a backslash."""
    quoted = (word.replace("\\", "\\\\").replace("'", "\\'") for word in words)
    return " ".join(
        one if one == word and word.replace("-", "").isalnum() else f"'{one}'"
        for one, word in zip(quoted, words, strict=True)
    )
