"""`npurt completion`: print a shell script that completes verbs, options and values."""

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

BASH = """\
_npurt() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words=""
    local verb=${{COMP_WORDS[1]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -gt 2 ]; then
        case "$verb ${{COMP_WORDS[2]}}" in
            {nested}) verb="$verb ${{COMP_WORDS[2]}}" ;;
        esac
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        words={verbs}
    else
        case "$verb:$prev" in
{values}
            *)
                case "$verb:$cur" in
{options}
                esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _npurt npurt
"""
ZSH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""
FISH = """\
function __npurt_verb -d "Is this the verb of the command line, such as 'bench matmul'?"
    set -l words (commandline -opc)
    set -l verb "$words[2..3]"
    contains -- $verb {nested}; or set verb "$words[2]"
    test "$verb" = "$argv"
end
"""
USE = """\
Bash: eval "$(npurt completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish:
npurt completion fish > ~/.config/fish/completions/npurt.fish"""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "completion",
        help="print a script for the shell's completion of npurt",
        description=USE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run, verbs=verbs)


def run(args: argparse.Namespace) -> int:
    """Print the script for a shell, made from the parsers of all verbs."""
    script = fish(args.verbs) if args.shell == "fish" else bash(args.verbs)
    print(f"{ZSH if args.shell == 'zsh' else ''}{script}", end="")
    return 0


def bash(verbs: Any) -> str:
    """Return the script for bash; without a matching word, bash completes file names."""
    values, options = [], []
    parsers = dict(_parsers(verbs))
    for verb, parser in parsers.items():
        names: list[str] = []
        first: list[str] = []
        for action in _visible(parser):
            names += action.option_strings
            choices = " ".join(map(str, action.choices or ()))
            if not action.option_strings:
                first += choices.split()
            elif choices or action.nargs is None:  # without choices, bash completes file names
                each = "|".join(f"'{verb}:{name}'" for name in action.option_strings)
                values.append(f"            {each}) words={shlex.quote(choices)} ;;")
        options.append(f"                '{verb}:-'*) words={shlex.quote(' '.join(names))} ;;")
        if first:
            options.append(f"                '{verb}:'*) words={shlex.quote(' '.join(first))} ;;")
    return BASH.format(
        verbs=shlex.quote(" ".join(verbs.choices)),
        nested="|".join(shlex.quote(name) for name in parsers if " " in name),
        values="\n".join(values),
        options="\n".join(options),
    )


def fish(verbs: Any) -> str:
    """Return the script for fish; without a matching word, fish completes file names."""
    parsers = dict(_parsers(verbs))
    lines = []
    for about in verbs._choices_actions:
        said = f"-a {about.dest} -d {_quoted(about.help)}"
        lines.append(f"complete -c npurt -f -n __npurt_verb {said}")
    for verb, parser in parsers.items():
        for action in _visible(parser):
            parts = [f"complete -c npurt -n '__npurt_verb {verb}'"]
            parts += [_fish_name(name) for name in action.option_strings]
            if action.choices:
                parts.append(f"-x -a {_quoted(' '.join(map(str, action.choices)))}")
            elif action.option_strings and action.nargs is None:
                parts.append("-r")
            if action.option_strings:
                parts.append(f"-d {_quoted((action.help or '').partition(' (default')[0])}")
            if len(parts) > 1:
                lines.append(" ".join(parts))
    nested = " ".join(_quoted(name) for name in parsers if " " in name)
    return FISH.format(nested=nested) + "\n".join(lines) + "\n"


def _parsers(verbs: Any, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each verb and each subcommand, such as "bench matmul", with its parser."""
    for verb, parser in verbs.choices.items():
        yield f"{before}{verb}", parser
        for group in parser._subparsers._group_actions if parser._subparsers else ():
            yield from _parsers(group, f"{before}{verb} ")


def _visible(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.help is not argparse.SUPPRESS)


def _fish_name(name: str) -> str:
    """Return fish's flag for an option: -l for two dashes, -o for one dash.

    With -s, fish's usual flag for a single letter, fish would combine letters, as in `-hn`.
    """
    return f"-l {name[2:]}" if name.startswith("--") else f"-o {name[1:]}"


def _quoted(text: str) -> str:
    """Quote *text* for fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
