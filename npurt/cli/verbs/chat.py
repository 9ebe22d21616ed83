"""`npurt chat`: an interactive chat with a model."""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from npurt.base.files import parsed, replacing
from npurt.cli.arguments import llama_cpp, options
from npurt.cli.arguments.parser import Parser, like
from npurt.cli.arguments.sampling import add_sampling, check_sampling, sampling
from npurt.cli.output import terminal
from npurt.cli.verbs import remote
from npurt.errors import ContextFull, NpurtError, SettingError
from npurt.llm.text.turns import fitted, without

if TYPE_CHECKING:
    from npurt.llm.decode.llama import Llama

HELP = "/help lists the commands; /quit or Ctrl-D leaves."
COMMANDS = {
    "/help": "list these commands",
    "/clear": "delete the conversation except the system message (also /reset)",
    "/regen": "answer the last message again",
    "/model [NAME]": "show the model, or continue with another one",
    "/system [TEXT]": 'show the system message, or replace it; "" removes it',
    "/set [NAME VALUE]": "show the sampling settings, or change one, as in /set temp 0.5",
    "/save FILE": "write the conversation to a file, as JSON",
    "/load FILE": "continue a conversation from a file of /save",
    "/report": "show which device computed what",
    "/quit": "leave (also /exit, Ctrl-D)",
}
MULTILINE = 'A \\ at the end of a line continues the message; """ encloses several lines.'
ALIASES = {"/reset": "/clear", "/exit": "/quit"}
FULL = "/clear, or start again with a larger -c"
LEFT_OUT = (
    "[the conversation is longer than the context: its oldest turns are left out from now on; "
    "/save keeps them]"
)
UNSET = {"n_predict": -1, "seed": -1}  # the numbers that stand for "not set" in /set
QUOTES = '"""'

Messages = Sequence[Mapping[str, Any]]


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "chat",
        help="talk to a model",
        description=f"Talk to a model. {HELP} {MULTILINE}",
    )
    source = options.add_model(parser, shift=True)
    source.required = False  # a server with only one model needs no -m
    remote.add(parser)
    options.add_conversation(parser)
    add_sampling(parser)
    parser.add_argument("--no-history", dest="history", action="store_false",
                        help="neither load nor save the input history")  # fmt: skip
    parser.add_argument("--no-markdown", dest="markdown", action="store_false",
                        help="do not render Markdown on a terminal")  # fmt: skip
    llama_cpp.add(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Read messages and answer them; Ctrl-C ends the current answer or message only."""
    if args.conversation is False:
        args.usage_error("a chat is a conversation; for plain text: npurt run --raw")
    if args.url is not None:
        remote.settings(args)  # checks the settings before the first request
        return _talk(Chat(remote.opened(args), args, (), remote.settings))
    if args.model is None:
        args.usage_error("one of the arguments -m/--model -hf/--hf-repo --url is required")
    from npurt.llm.decode.llama import Llama

    check_sampling(args)
    path = options.model_path(args)
    chat = Chat(Llama(path, **options.model(args)), args, options.models_of(args, path))
    try:
        return _talk(chat)
    finally:
        chat.llm.close()  # /model may have opened it


def _talk(chat: "Chat") -> int:
    """Read and handle messages until the user leaves; return the exit status.

    A failure is shown to a user, who goes on.  A program, which is no terminal, gets status 1.
    """
    print(f"{chat.llm!r}\n{HELP}", file=sys.stderr)
    with terminal.history(enabled=chat.args.history):
        while True:
            try:
                if not chat.take(_message()):
                    break
            except KeyboardInterrupt:
                print()
    print(chat.llm.report().line(), file=sys.stderr)
    return int(chat.has_failed and not sys.stdin.isatty())


def _checked(args: argparse.Namespace) -> dict[str, Any]:
    check_sampling(args)
    return sampling(args)


class Chat:
    """A conversation with a model, and the settings of its answers.

    Attributes:
        llm: The model, local or on a server.
        args: The options of the verb, including changes by /set.
        has_failed: Whether a message or command failed.
    """

    def __init__(
        self,
        llm: "Llama | remote.RemoteModel",
        args: argparse.Namespace,
        models: Sequence[str | Path],
        settings: Callable[[argparse.Namespace], dict[str, Any]] = _checked,
    ) -> None:
        self.llm = llm
        self.has_failed = False
        self._settings = settings
        self._models = models  # files of the model, which /save must not overwrite
        self.args = args
        self._messages: Messages = []
        self._left_out = 0  # the number of oldest turns that are not sent
        self._set_system(args.system or "")

    def take(self, message: str) -> bool:
        """Answer *message*, or execute it as a command; return False for /quit, else True."""
        word, _, rest = message.partition(" ")
        word = ALIASES.get(word, word)
        if word == "/quit":
            return False
        try:
            if re.fullmatch(r"/\w*", word):  # a path such as /etc/hosts is no command
                self._command(word, rest.strip())
            elif message:
                self._answer([*self._messages, {"role": "user", "content": message}])
        except NpurtError as error:
            self.has_failed = True
            print(error, file=sys.stderr)
        except MemoryError as error:
            self.has_failed = True
            print(f"no memory left: {error}\n  remedy: /clear, or close other programs",
                  file=sys.stderr)  # fmt: skip
        return True

    def _command(self, word: str, rest: str) -> None:
        known = [command.split()[0] for command in COMMANDS]
        if word not in known:
            raise SettingError(
                f"there is no command {word}{like(word, [*known, *ALIASES])}",
                remedy="/help lists the commands",
            )
        getattr(self, f"_{word[1:]}")(rest)

    def _answer(self, asked: Messages) -> None:
        """Answer the conversation *asked*; store it with the answer, unless an error occurs.

        *asked* ends with the user's message.
        """
        pieces: list[str] = []
        left_out = self._left_out

        def made(sent: Messages) -> Iterator[str]:
            for piece in self._sent(sent):
                pieces.append(piece)
                yield piece

        try:
            sent = self._fitting(asked)
            terminal.show(
                made(sent), within=self._begins_in_thought(sent), markdown=self.args.markdown
            )
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        except ContextFull as error:
            self._left_out, self.has_failed = left_out, True
            print(f"{error.what}\n  remedy: {FULL}", file=sys.stderr)
            return
        print(flush=True)
        timing = self.llm.timing
        print(f"[{timing.generated_tokens} tokens, {timing.decode_rate:.1f} tokens/s]",
              file=sys.stderr)  # fmt: skip
        if timing.finish == "context":
            print(f"[the context is full; {FULL}]", file=sys.stderr)
        self._messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    def _fitting(self, asked: Messages) -> Messages:
        """Return the messages of *asked* that are sent: without turns that do not fit."""
        sent = without(asked, self._left_out)
        if isinstance(self.llm, remote.RemoteModel):
            return sent  # the server knows the size
        most = self._settings(self.args).get("max_tokens")
        count, _ = fitted(sent, self.llm.apply_chat_template, self.llm.n_ctx, most)
        return self._shortened(sent, count)

    def _sent(self, sent: Messages) -> Iterator[str]:
        """Yield the answer to *sent*; send less if a server finds it too long."""
        settings = self._settings(self.args)
        while True:
            begun = False
            try:
                for piece in self.llm.chat(sent, stream=True, **settings):
                    begun = True
                    yield piece
            except ContextFull:
                count = remote.turns_to_leave_out(sent)
                if begun or not count:
                    raise
                sent = self._shortened(sent, count)
            else:
                return

    def _shortened(self, sent: Messages, count: int) -> Messages:
        """Return *sent* without its *count* oldest turns; say so the first time."""
        if not count:
            return sent
        if not self._left_out:
            print(LEFT_OUT, file=sys.stderr)
        self._left_out += count
        return without(sent, count)

    def _begins_in_thought(self, asked: Messages) -> bool:
        """Return whether the prompt ends with the tag that begins a thought."""
        if isinstance(self.llm, remote.RemoteModel) or not terminal.has_styles():
            return False  # `RemoteModel` yields both tags
        prompt = self.llm.template.render(asked, add_generation_prompt=True)
        return prompt.rstrip().endswith(terminal.BEGIN)

    def _set_system(self, text: str) -> None:
        rest = [message for message in self._messages if message["role"] != "system"]
        self._messages = [{"role": "system", "content": text}, *rest] if text else rest

    # --- Commands -------------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        for command, about in COMMANDS.items():
            print(f"{command:18} {about}")
        print(MULTILINE)

    def _model(self, name: str) -> None:
        """Continue the conversation with another model; the old one stays if that fails."""
        if not name:
            print(repr(self.llm))
            return
        args = argparse.Namespace(**{**vars(self.args), "model": name})
        if isinstance(self.llm, remote.RemoteModel):
            self.llm = remote.opened(args)
        else:
            from npurt.llm.decode.llama import Llama

            path = options.model_path(args)
            found = Llama(path, **options.model(args))
            self.llm.close()
            self.llm, self._models = found, options.models_of(args, path)
        self.args = args
        print(repr(self.llm), file=sys.stderr)

    def _report(self, _: str) -> None:
        print(self.llm.report())

    def _clear(self, _: str) -> None:
        self._messages = [m for m in self._messages if m["role"] == "system"]
        self._left_out = 0

    def _regen(self, _: str) -> None:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            raise SettingError("there is no answer to replace", remedy="write a message first")
        self._answer(self._messages[:-1])

    def _system(self, text: str) -> None:
        if text:
            self._set_system("" if text == '""' else text)
        else:
            said = [m["content"] for m in self._messages if m["role"] == "system"]
            print("\n".join(said) or "there is no system message")

    def _set(self, text: str) -> None:
        """Show the settings, or change one; a setting has the same name and values as its flag."""
        settings = _Settings(prog="/set", add_help=False)
        add_sampling(settings)
        if not text:
            for attribute, name in settings.names().items():
                value, unset = getattr(self.args, attribute), UNSET.get(attribute, "default")
                print(f"{name:21} {unset if value is None else value}")
            return
        name, _, value = text.partition(" ")
        flag = f"{'-' if len(name) == 1 else '--'}{name.replace('_', '-')}"
        if flag not in settings._option_string_actions:
            raise SettingError(
                f"there is no setting {name}{like(name, settings.names().values())}",
                remedy="/set alone lists the settings and their values",
            )
        changed = argparse.Namespace(**vars(self.args))
        settings.parse_args([f"{flag}={value.strip()}"], changed)
        self._settings(changed)
        self.args = changed

    def _save(self, path: str) -> None:
        target = _named(path, "/save")
        options.require_apart(target, *self._models)
        text = json.dumps(self._messages, ensure_ascii=False, indent=1)
        try:
            with replacing(target) as file:
                file.write(f"{text}\n".encode())
        except OSError as error:
            raise NpurtError(
                f"cannot write {path}: {error.strerror}", remedy="name a file that can be written"
            ) from error
        print(f"[{len(self._messages)} messages are in {target}]", file=sys.stderr)

    def _load(self, path: str) -> None:
        self._messages = _conversation(str(_named(path, "/load")))
        self._left_out = 0
        print(f"[the conversation has {len(self._messages)} messages]", file=sys.stderr)


class _Settings(Parser):
    """The parser of the settings that /set changes."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(message, remedy="/set alone lists the settings and their values")

    def names(self) -> dict[str, str]:
        """Return a dict: attribute of the parsed arguments -> name of the setting."""
        names: dict[str, str] = {}
        for action in self._actions:
            flag = max(action.option_strings, key=lambda flag: flag.startswith("--"))
            names.setdefault(action.dest, flag.lstrip("-").replace("-", "_"))
        return names


def _named(path: str, command: str) -> Path:
    if path in ("", "-"):  # standard input is used for the messages
        raise SettingError(f"{command} needs the name of a file", remedy=f"write: {command} FILE")
    return Path(os.path.expanduser(path))  # does not expand the ~ of an unknown user


def _conversation(path: str) -> Messages:
    """Return the messages in a file that /save wrote.

    Raises:
        NpurtError: The file cannot be read, or does not contain a conversation.
    """
    text = options.text_of(path)
    try:
        held = parsed(text)
        messages = [{"role": m["role"], "content": m["content"]} for m in held]
        if not all(isinstance(text, str) for m in messages for text in m.values()):
            raise TypeError("a role or content is no text")
        json.dumps(messages, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, TypeError, KeyError) as error:
        raise NpurtError(
            f"{path} contains no conversation", remedy="give a file that /save wrote"
        ) from error
    return messages


def _message() -> str:
    """Read one message, which may have several lines; return ``/quit`` at the end of input."""
    try:
        text = input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return "/quit"
    if text.startswith(QUOTES):
        return _quoted(text.removeprefix(QUOTES))
    while text.endswith("\\"):
        text = text[:-1] + "\n"
        with contextlib.suppress(EOFError):  # the end of input ends the message
            text += _more()
    return text.strip()


def _quoted(text: str) -> str:
    """Return *text* and the next lines up to the closing quotes or the end of input."""
    with contextlib.suppress(EOFError):
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + _more()
    return text.rstrip().removesuffix(QUOTES).strip()


def _more() -> str:
    return input("... " if sys.stdin.isatty() else "")
