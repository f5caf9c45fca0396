"""From the command line to the tray, a headless app, a verb, or one of our own hidden programs.

`coolhead guard` and `coolhead worker ENGINE` are how the app starts its guard and how the guard starts
workers, in a checkout, an installation and a frozen build alike. Each verb's module is imported only
when it is asked for, so that `coolhead status` does not pay for the router.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from app import __version__

VERBS = {
    "ask": "ask the model one question",
    "status": "what is running, with its memory",
    "stop": "stop the running Coolhead",
    "start": "open the endpoint of a stopped Coolhead again",
    "pause": "take no new requests",
    "resume": "take requests again",
    "load": "load a model into memory",
    "unload": "take a model out of memory",
    "safe-mode": "what is held back after a bad end; leave it",
    "plan": "what a model would take, and whether it fits",
    "presets": "what the presets would pick for this machine",
    "models": "installed models: list, pull, rm",
    "settings": "read and change settings",
    "route": "where a request would go, and why",
    "routes": "check or reload the routing rules",
    "events": "what the guard and the workers did",
    "doctor": "what this machine has, and what to do about what it lacks",
    "engine": "which engines are installed; install another",
}
WORKER_MODULES = {
    "xllamacpp": "app.core.backends.engines.xllamacpp_server",
    "llama-server": "app.core.backends.engines.llama_server",
    "llama-cpp-python": "app.core.backends.engines.llama_cpp_python_server",
    "mlx": "app.core.backends.engines.mlx_server",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; the exit status.

    0 done, 1 failed (the reason is on stderr), 2 wrong usage, 3 does not fit, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["guard"]:
        from app.guard.__main__ import main as guard_main

        return int(guard_main(arguments[1:]) or 0)
    if arguments[:1] == ["worker"]:
        module = importlib.import_module(WORKER_MODULES[arguments[1]])
        return int(module.main(arguments[2:]) or 0)
    if arguments[:1] == ["dry-run"]:
        from app.core.models.dry_run_program import main as dry_run_main

        return dry_run_main(arguments[1:])
    if arguments[:1] == ["devices"]:
        from app.core.hardware.engine_devices import main as devices_main

        return devices_main()
    if arguments[:1] == ["hub"]:
        from app.core.models.hub import main as hub_main

        return hub_main(arguments[1:])
    from app.core.errors import CoolheadError

    try:
        return _run(arguments)
    except CoolheadError as error:
        print(f"coolhead: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left (as `| head` does); python would complain at exit otherwise.
        sys.stderr.close()
        return 0


def _run(arguments: list[str]) -> int:
    parser = _parser()
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb in VERBS and arguments and arguments[0] == verb:
        module = importlib.import_module(f"app.cli.{verb.replace('-', '_')}")
        top = argparse.ArgumentParser(prog="coolhead")
        module.add_parser(top.add_subparsers(dest="verb", required=True))
        return int(module.run(top.parse_args(arguments)))
    options = parser.parse_args(arguments)
    if options.verb:
        parser.error(f"there is no verb {options.verb!r}; it is one of {', '.join(VERBS)}")
    from app.runner import run_app

    return run_app(
        is_headless=options.headless,
        port=options.port,
        ends_with_stdin=options.until_eof,
    )


def _port(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: it takes 1 to 65535, or auto")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {name:<10} {words}" for name, words in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="coolhead",
        description="Runs local language models behind one loopback OpenAI endpoint.",
        epilog=f"verbs:\n{verbs}\n\nWithout a verb: the tray, or --headless.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"coolhead {__version__}")
    parser.add_argument("--headless", action="store_true", help="serve without a tray")
    parser.add_argument(
        "--port", type=_port, default=None, metavar="PORT", help="port, or auto for any free one"
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
