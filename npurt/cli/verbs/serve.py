"""`npurt serve`: serve models over HTTP."""

import argparse
import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.base import extras
from npurt.cli.arguments import llama_cpp, options
from npurt.cli.arguments.sampling import add_sampling, check_sampling, sampling
from npurt.errors import NpurtError

if TYPE_CHECKING:
    from npurt.serve.router.folder import FolderModel

LEVELS = ("debug", "info", "warning", "error")
NEEDED = ("starlette", "uvicorn", "prometheus_client")  # packages of the extra `server`


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "serve",
        help="serve models over HTTP with OpenAI's and other interfaces",
        description="Serve models over HTTP with the interfaces of OpenAI, Anthropic, Ollama and "
        "llama.cpp.  This needs the packages of the extra `server`.  After Ctrl-C or SIGTERM, the "
        "server finishes the active requests and exits.",
    )
    options.add_model(parser, add_folder)
    add_sampling(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                       help="address to listen on")  # fmt: skip
    group.add_argument(
        "--port", type=int, default=8080, metavar="N", help="port to listen on; 0: any free port"
    )
    group.add_argument("-a", "--alias", metavar="NAME",
                       help="name of the model in requests, or several, separated by commas "
                       "(default: the file's name)")  # fmt: skip
    group.add_argument("--chat-template", metavar="TEXT",
                       help="chat template as Jinja source, or the name of a format such as "
                       "chatml")  # fmt: skip
    group.add_argument("--api-key-file", type=Path, metavar="FILE",
                       help="file of API keys, one per line; required if other machines can "
                       "reach the server")  # fmt: skip
    group.add_argument("--insecure", action="store_true",
                       help="accept requests of other machines without API keys")  # fmt: skip
    group.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                       help="host name of this server, besides localhost and addresses; may be "
                       "repeated")  # fmt: skip
    group.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN",
                       help="let web pages of this origin use the server; may be "
                       "repeated")  # fmt: skip
    group.add_argument("--no-page", action="store_true", help="do not serve the chat page at /")
    group.add_argument("--log-level", choices=LEVELS, default="info", metavar="LEVEL",
                       help="what is logged: info has a line for each request, debug also for "
                       "those that only read, warning neither; error (default: info)")  # fmt: skip
    group.add_argument("-q", "--quiet", action="store_true",
                       help="log no line for each request, as --log-level warning")  # fmt: skip
    group.add_argument("-np", "--parallel", type=options.positive, metavar="N",
                       help="maximum number of concurrent sequences (default: 8)")  # fmt: skip
    group.add_argument("--kv-bytes", type=options.positive, metavar="N",
                       help="memory for the KV cache of all sequences (default: a quarter of "
                       "the free memory)")  # fmt: skip
    group.add_argument("--embeddings", "--embedding", "--rerank", "--reranking",
                       action="store_true",
                       help="serve embeddings, and scores of rerankers, only")  # fmt: skip
    group.add_argument("--idle-seconds", type=options.seconds, default=300.0, metavar="SECONDS",
                       help="idle time after which a model of --models-dir is unloaded; 0: never "
                       "(default: 300)")  # fmt: skip
    group.add_argument("--models-max", type=int, default=0, metavar="N",
                       help="maximum number of loaded models; 0: limited by memory only (default: "
                       "0)")  # fmt: skip
    group.add_argument("--models-bytes", type=int, metavar="N",
                       help="memory budget of all loaded models (default: the free "
                       "memory)")  # fmt: skip
    group.add_argument("--timeout", type=options.seconds, default=600.0, metavar="SECONDS",
                       help="maximum duration of a request")  # fmt: skip
    group.add_argument("--engine-timeout", type=options.seconds, default=120.0, metavar="SECONDS",
                       help="time without a message after which the engine is "
                       "restarted")  # fmt: skip
    llama_cpp.add(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def add_folder(source: Any) -> None:
    """Add the flag of a folder of models to the flags that name a model."""
    source.add_argument("--models-dir", type=Path, metavar="DIR",
                        help="serve all GGUF files in DIR and its subfolders by their names; load "
                        "each model on first use")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    require_installed()
    from npurt.serve.http.address import Address

    logging.basicConfig(level=logging.WARNING, format="npurt: %(message)s", stream=sys.stderr)
    logging.getLogger("npurt.serve").setLevel("WARNING" if args.quiet else args.log_level.upper())
    defaults = sampling(args)
    maximum = defaults.pop("max_tokens")
    for name in ("stop", "grammar", "ignore_eos"):
        if defaults.pop(name):
            args.usage_error(f"{name} cannot be a default of the server; set it in requests")
    if not args.timeout or not args.engine_timeout:
        args.usage_error("a timeout must be above 0")
    if args.models_max < 0:
        args.usage_error("--models-max must be 0 or more")
    if args.models_bytes is not None and args.models_bytes < 1:
        args.usage_error("--models-bytes must be 1 or more")
    keys: list[str] = []
    if args.api_key_file:
        from npurt.serve.http.auth import read_keys

        keys = read_keys(args.api_key_file)
    address = Address(args.host, args.port, keys, args.allow_host, args.cors_origin, args.insecure)
    address.require_safe()
    model: Any
    if args.models_dir:
        from npurt.serve.router.policy import Policy

        model = models(args)
        policy = Policy(args.idle_seconds, args.models_max or None, args.models_bytes)
    else:
        from npurt.serve.front.served_model import ServedModel

        model = ServedModel(options.model_path(args), args.alias, args.chat_template)
        policy = None
    # These imports come after reading the model, so that they reuse the memory that reading freed.
    from npurt.serve.front.front import ServerSettings
    from npurt.serve.run import Start
    from npurt.serve.run import run as serve

    check_sampling(args)
    if not args.models_dir and max(defaults["logit_bias"], default=0) >= model.tokenizer.n_vocab:
        args.usage_error("--logit-bias names an id beyond the model's vocabulary")
    settings = ServerSettings(
        defaults, maximum, args.timeout, embeddings=args.embeddings,
        lora=[(Path(file).name, scale) for file, scale in args.lora],
    )  # fmt: skip
    return serve(Start(
        model, address, engine_options(args), settings, args.engine_timeout,
        page=not args.no_page, policy=policy,
    ))  # fmt: skip


def models(args: argparse.Namespace) -> "list[FolderModel]":
    """Return the models of ``--models-dir``, and print which files are skipped."""
    from npurt.serve.router.folder import scan

    for name in ("alias", "chat_template", "lora"):
        if getattr(args, name):
            args.usage_error(f"--{name.replace('_', '-')} is for one model: use it with -m")
    found, notes = scan(args.models_dir, args.ctx_size)
    for note in notes:
        print(f"npurt: {note}", file=sys.stderr)
    print(f"npurt: serving {', '.join(model.name for model in found)}", file=sys.stderr)
    return found


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `npurt.Engine` besides the model.

    Raises:
        NpurtError: A device, a draft model or an adapter does not exist.
    """
    require_engine(args)
    given = options.model(args)
    del given["context_shift"]
    if args.draft:
        given["draft"] = str(given["draft"])
    chosen = {name: value for name, value in given.items() if value is not None}
    if args.embeddings:
        return chosen | {"embeddings": True}
    return chosen | {"max_sequences": args.parallel, "kv_bytes": args.kv_bytes}


def require_engine(args: argparse.Namespace) -> None:
    """Check the arguments of the engine's process before the server's address is printed.

    Raises:
        NpurtError: A device has no such name, or an adapter is no GGUF file.
    """
    from npurt.llm.file.mapped import MappedGGUF
    from npurt.runtime.open.registry import require_known

    rows = options.MAX_BATCH if args.batch_size is None else args.batch_size
    if rows < 1 or (args.ctx_size or 0) < 0:
        args.usage_error("-b must be 1 or more, and -c 0 or more")
    if (args.parallel or 1) > rows:
        args.usage_error(f"-np {args.parallel}: a run has {rows} rows (-b), one for each sequence")
    for name in (options.device(args), args.device_draft or "cpu"):
        require_known(name)
    for path, _ in args.lora:
        MappedGGUF(path).close()
    if args.draft and args.draft != "lookup":
        args.draft = str(options.draft_path(args.draft))
        MappedGGUF(args.draft).close()


def require_installed() -> None:
    """Check that the packages of the extra `server` are installed.

    Raises:
        NpurtError: A package is missing.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NpurtError(f"npurt serve needs {', '.join(missing)}", remedy=extras.command("server"))
