"""`longdraft serve`: an OpenAI-compatible server."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longdraft.cli import common
from longdraft.cli.loading_views import loading_lines
from longdraft.cli.option_groups import DrafterOptions, MethodOptions, TargetOptions, expand
from longdraft.cli.sampling_options import DefaultSampling
from longdraft.errors import InputError
from longdraft.models.loading_progress import viewing

if TYPE_CHECKING:
    from longdraft.methods.spec import MethodSpec

LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
KEY = "LONGDRAFT_API_KEY"
MOST_S = 1e7  # seconds of any limit


Models = Annotated[
    list[str],
    typer.Option(
        "-m",
        "--model",
        help="The target, as in other commands; repeatable: each request then names its model.",
    ),
]


@expand
def serve(
    model: Models = ("smollm2",),  # type: ignore[assignment]
    method_options: MethodOptions = MethodOptions(),
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Methods that requests may choose beside --method, with commas between "
            "(default: plain).",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="The model's name in the API, once for each -m (default: as given to -m)."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"A file whose lines are the keys that clients may use (or set {KEY})."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=256, help="Number of requests decoded at the same time.")
    ] = 8,
    context: Annotated[
        int | None,
        typer.Option(
            min=16, help="Tokens of a prompt and its answer (default: the model's positions)."
        ),
    ] = None,
    cache_tokens: Annotated[
        int | None,
        typer.Option(
            min=16, help="Tokens that all running requests may need (default: batch x context)."
        ),
    ] = None,
    prefix_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tokens of earlier requests whose keys and values are kept; 0 keeps none "
            "(default: the context or"
            " 32,768, whichever is more, within a quarter of the free memory).",
        ),
    ] = None,
    share_prefixes: Annotated[
        bool,
        typer.Option(
            "--share-prefixes",
            help="Reuse them across API keys: a key can then learn what others sent.",
        ),
    ] = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also keep keys and values of prompts in this private folder, for later servers.",
        ),
    ] = None,
    cache_dir_mb: Annotated[
        int,
        typer.Option(
            min=1,
            max=1 << 30,
            help="Size of --cache-dir in megabytes; the least recently used prompts are removed "
            "first.",
        ),
    ] = 4096,
    queue: Annotated[
        int, typer.Option(min=0, help="Maximum number of waiting requests; further ones get a 429.")
    ] = 64,
    chunk: Annotated[
        int,
        typer.Option(
            min=16,
            help="Prompt tokens to prefill between two steps of running requests (where torch "
            "reads them, a multiple"
            " of 1024).",
        ),
    ] = 256,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Largest number of new tokens per answer.")
    ] = 4096,
    default_sampling: DefaultSampling = DefaultSampling(),
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse fields that are unknown or have no effect, and too large a max_tokens.",
        ),
    ] = False,
    parse_special: Annotated[
        bool,
        typer.Option(
            "--parse-special",
            help="Trust clients: parse_special (Ollama: raw) lets a completion's prompt spell "
            "special tokens.",
        ),
    ] = False,
    queue_seconds: Annotated[
        float, typer.Option(min=0.1, max=MOST_S, help="Seconds to wait in the queue.")
    ] = 120.0,
    request_seconds: Annotated[
        float, typer.Option(min=0.1, max=MOST_S, help="Seconds that a request may take in all.")
    ] = 600.0,
    grace_seconds: Annotated[
        float, typer.Option(min=0.0, max=MOST_S, help="Seconds to finish after SIGTERM.")
    ] = 30.0,
    client_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=MOST_S,
            help="Seconds that a client may take to send a request, or to read an answer.",
        ),
    ] = 30.0,
    max_body: Annotated[int, typer.Option(min=1024, help="Largest request body, in bytes.")] = 4
    << 20,
    client_requests: Annotated[
        int, typer.Option(min=1, help="Open requests allowed per client address.")
    ] = 64,
    log_level: Annotated[
        str,
        typer.Option(
            metavar="error|warning|info",
            help="Log refusals from warning on, and requests from info on.",
        ),
    ] = "info",
    log_format: Annotated[
        str, typer.Option(metavar="text|json", help="Lines of text, or a JSON object in each line.")
    ] = "text",
    page: Annotated[
        bool, typer.Option(help="Serve a page at / that shows methods drafting.")
    ] = True,
    target_options: TargetOptions = TargetOptions(),
    drafter_options: DrafterOptions = DrafterOptions(),
    threads: common.Threads = None,
) -> None:
    """Serve models over OpenAI's API, with metrics, and a page at / that shows a method at work.

    With the CPU kernels, a request's output is what `longdraft generate` gives for the same sampler
    and seed, whatever runs beside it. On other backends the two can differ where tokens tie within
    rounding.
    """
    try:
        from longdraft.server.http.server_log import check, logging_to, note
        from longdraft.server.uvicorn_server import Served, Server, ServerSettings, listening
    except ModuleNotFoundError as error:
        raise InputError(
            f"the server needs {error.name}, which is not installed: pip install 'longdraft[serve]'"
        ) from None
    from longdraft.engine.session import Session
    from longdraft.models.chat import has_template
    from longdraft.models.control import control_of
    from longdraft.models.text import token_ids
    from longdraft.prompts.prefix_cache import PrefixCache
    from longdraft.prompts.prefix_room import prefix_room
    from longdraft.prompts.prompt_folder import PromptFolder, private

    check(log_level, log_format)
    keys = read_keys(api_key_file)
    place = listening(host, port)
    if cache_dir is not None:
        private(cache_dir)  # refused before the model is loaded
    if host not in LOCAL and not keys:
        print(
            "longdraft: note: without --api-key-file, anyone who can reach this address can use it",
            file=sys.stderr,
        )
    names = names_of(list(model), list(name or []))
    folders = []
    served = []
    specs = []
    for given, called in zip(model, names, strict=True):
        spec = method_options.spec(drafter_options, target_options.trained(given), 0)
        others = others_of(methods, spec)
        with loading_shown():
            target, tokenizer = common.load_target(given, target_options, threads)
        spec.check(target, None)
        slots = min(context or target.positions, target.positions)
        kept = (
            prefix_room(target, slots, batch * slots, len(names))
            if prefix_tokens is None
            else prefix_tokens
        )
        prefixes = None
        if kept:
            told = note if cache_dir is None else None
            prefixes = PrefixCache(kept, tell=told, tails=True)
        if cache_dir is not None:
            prefixes = PromptFolder(cache_dir, target, cache_dir_mb * 1_000_000, prefixes, note)
            folders.append(prefixes)
        session = Session(
            target,
            spec.paced(target),
            batch,
            slots,
            chunk=chunk,
            queue=queue,
            total=cache_tokens,
            prefixes=prefixes,
            others={name: other.paced(target) for name, other in others.items()},
        )
        served.append(Served(session, tokenizer, called, spec.name, list(others)))
        specs.append(spec)
    first, *others = served
    settings = ServerSettings(
        first.model,
        first.method,
        host=host,
        port=port,
        keys=keys,
        hosts=LOCAL if host in LOCAL else None,
        most_new=max_new_tokens,
        queue_s=queue_seconds,
        request_s=request_seconds,
        grace_s=grace_seconds,
        client_s=client_seconds,
        most_body=max_body,
        client_requests=client_requests,
        page=page,
        share_prefixes=share_prefixes,
        strict=strict,
        sampling=default_sampling.given,
        methods=first.methods,
        parse_special=parse_special,
    )
    server = Server(first.session, first.tokenizer, settings, specs[0].weights, others)
    for tokenizer in (each.tokenizer for each in served):
        if has_template(tokenizer):
            server.service.templates.start()
            with suppress(InputError):  # chats say it, and completions do without
                # takes a second or two with a large vocabulary: not while the first chat waits
                control_of(tokenizer)
        # copies the vocabulary, in a second if it is large: not while the first prompt waits
        token_ids(tokenizer, "")
    # what is loaded stays: garbage collections that read it would delay all answers by 0.1 s and
    # more
    gc.freeze()
    with logging_to(log_level, log_format):
        try:
            status = server.run([place])
        finally:
            gc.unfreeze()
            for folder in folders:
                folder.close()
    if status:
        raise typer.Exit(status)


def others_of(methods: str | None, own: MethodSpec) -> dict[str, MethodSpec]:
    """The methods beside the server's own that requests may choose, with default options.

    Raises InputError for an unknown one.
    """
    from longdraft.methods.spec import MethodSpec

    names = ["plain"] if methods is None else [name.strip() for name in methods.split(",")]
    return {name: MethodSpec(name, name, {}, own.weights) for name in names if name != own.name}


def loading_shown() -> AbstractContextManager[None]:
    """Progress of loading for a log: lines, unless a terminal shows the command's bar."""
    if sys.stderr.isatty():
        return nullcontext()
    return viewing(partial(loading_lines, say=common.say))


def names_of(models: list[str], names: list[str]) -> list[str]:
    """The models' names in the API. Raises InputError."""
    if names and len(names) != len(models):
        raise InputError(
            f"--name is given {len(names)} times for {len(models)} models: give it once for each -m"
        )
    called = names or models
    if twice := next((each for each in called if called.count(each) > 1), None):
        raise InputError(f"two models are named {twice}: give each another --name")
    return called


def read_keys(file: Path | None) -> list[bytes]:
    """The keys in a file, one in a line, and that of the environment. Raises InputError."""
    from longdraft.core.files import read_bytes

    keys = [os.environ[KEY]] if os.environ.get(KEY) else []
    if file is not None:
        try:
            keys += read_bytes(file).decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            raise InputError(
                f"cannot read the API keys in {file}: give a UTF-8 text file, a key in a line"
            ) from None
    stripped = [key.strip().encode() for key in keys if key.strip()]
    if file is not None and not stripped:
        raise InputError(f"{file} has no API key: write one in each line")
    return stripped
