"""The commands and their options; what they do is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqmix.cli.evaluations import HELP_OPTIONS, Evaluations

__all__ = ["app"]

app = typer.Typer(
    name="seqmix",
    help="Sequence mixers written once in PyTorch: run, export, check, explain.\n\n"
    "MODEL is a saved directory, a Hugging Face directory, a GGUF file, a configuration "
    "(.json, .toml), or a name such as smollm2. --traceback shows the whole of an error.",
    rich_markup_mode=None,  # plain help needs no rich, which takes longer to import than the rest
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)

evaluations = typer.Typer(
    name="eval",
    cls=Evaluations,
    help="Evaluate models: recall, perplexity over lengths, and what plugins add.\n\n"
    "seqmix eval NAME --help describes one.",
    rich_markup_mode=None,
    context_settings=HELP_OPTIONS,
)
app.add_typer(evaluations)

new = typer.Typer(
    name="new",
    help="Write a package of your own to start from.",
    rich_markup_mode=None,
    context_settings=HELP_OPTIONS,
)
app.add_typer(new)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="What to load.")]
BackendName = Annotated[
    str,
    typer.Option("--backend", "-b", envvar="SEQMIX_BACKEND", help="A backend, or auto: by trial."),
]
Rope = Annotated[
    str | None, typer.Option(help="Extend the context: yarn:2, dynamic-yarn, rerope:W, ..")
]
SaveKernels = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="triton: write the source of generated kernels there."),
]
SmallerWeights = Annotated[
    str | None,
    typer.Option(help="Smaller matrices. onnxruntime: int8, int4; tvm: bf16, f16, int8."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Take the options that belong to no command."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"seqmix {installed('seqmix')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def plugins(json: Json = False) -> None:
    """List every plugin with its origin, and whether it loads; exit 1 if one does not."""
    from seqmix.cli.listing import list_plugins

    raise typer.Exit(list_plugins(json))


@app.command()
def backends(json: Json = False) -> None:
    """List the backends and the devices that they find here."""
    from seqmix.cli.listing import list_backends

    list_backends(json)


@app.command()
def info(
    subject: Annotated[str, typer.Argument(metavar="MODEL|MIXER", help="What to describe.")],
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens to cost; by default a model's context.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences to cost.")] = 1,
    width: Annotated[
        int | None, typer.Option(min=1, help="Of a mixer: the model's width; by default 768.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Of a mixer; repeat for more."),
    ] = None,
    rope: Rope = None,
    json: Json = False,
) -> None:
    """Describe a model or a mixer: parameters, operations, bytes of its state."""
    from seqmix.cli.info import describe

    describe(subject, rope, batch, seq_len, width, option or (), json)


@app.command()
def run(
    model: Model,
    prompt: Annotated[list[str], typer.Option(help="The text to continue; repeat for a batch.")],
    backend: BackendName = "torch",
    rope: Rope = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="At most so many new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Draw from the k likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest up to p; 1: all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Least share of the likeliest; 0: any.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 repeats less.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes sampling repeatable.")] = None,
    chat: Annotated[bool, typer.Option(help="Wrap the prompt in the chat template.")] = False,
    save_kernels: SaveKernels = None,
) -> None:
    """Continue a prompt, token by token, or several at once."""
    from seqmix.cli.run import continue_text

    continue_text(
        model,
        prompt,
        backend,
        rope,
        max_tokens,
        {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        },
        seed,
        chat,
        save_kernels,
    )


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    backend: BackendName = "onnxruntime",
    rope: Rope = None,
    force: Annotated[bool, typer.Option(help="Replace the folder if it exists.")] = False,
    opset: Annotated[int | None, typer.Option(help="ONNX: the opset of the file.")] = None,
    contrib: Annotated[
        bool, typer.Option(help="ONNX: use operators that only ONNX Runtime has.")
    ] = False,
    weights: SmallerWeights = None,
    with_runtime: Annotated[
        bool, typer.Option(help="tvm: add TVM's runtime; apache-tvm-ffi is then enough to run it.")
    ] = False,
    save_kernels: SaveKernels = None,
) -> None:
    """Compile a model for a backend and write everything that running it needs.

    With tvm, python OUT/run.py PROMPT continues a text without torch.
    """
    from seqmix.cli.export import export_model

    export_model(
        model, out, backend, rope, force, opset, contrib, weights, with_runtime, save_kernels
    )


@app.command()
def check(
    subject: Annotated[str, typer.Argument(metavar="MODEL|MIXER|OP|all", help="What to check.")],
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", help="Only these backends.")
    ] = None,
    full: Annotated[bool, typer.Option(help="Longer sequences.")] = False,
    weights: SmallerWeights = None,
    json: Json = False,
) -> None:
    """Prove that a mixer keeps its laws, an op or a model its meaning; exit 1 if not.

    With --weights, of a model, what smaller weights cost is measured as well.
    """
    from seqmix.cli.check import check_subject

    raise typer.Exit(check_subject(subject, backend, full, json, weights))


@app.command()
def explain(
    model: Model,
    backend: BackendName = "onnxruntime",
    rope: Rope = None,
    save_kernels: SaveKernels = None,
    json: Json = False,
) -> None:
    """Say which ops a backend runs natively, decomposes, or cannot run; exit 1 if any."""
    from seqmix.cli.explain import explain_model

    raise typer.Exit(explain_model(model, backend, rope, json, save_kernels))


@app.command()
def ir(
    model: Model,
    stage: Annotated[str, typer.Option(help="captured or legalized.")] = "captured",
    backend: BackendName = "onnxruntime",
    rope: Rope = None,
    locs: Annotated[bool, typer.Option(help="Show where every op comes from.")] = False,
    out: Annotated[Path | None, typer.Option("-o", help="Write to a file.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write both stages, side by side, as one web page."),
    ] = None,
) -> None:
    """Print the graph of a model; with --html, exit 1 if the backend cannot run it."""
    from seqmix.cli.ir import print_ir, write_page

    if html is None:
        print_ir(model, stage, backend, rope, locs, out)
    else:
        raise typer.Exit(write_page(model, backend, rope, html, out))


@app.command()
def bench(
    model: Model,
    backends: Annotated[
        str, typer.Option(help="Backends, maybe with options: torch,tvm,tvm:weights=int8")
    ] = "torch,onnxruntime",
    peers: Annotated[
        str, typer.Option(help="Other implementations: transformers, or module:function")
    ] = "",
    lengths: Annotated[str, typer.Option(help="Tokens of a prompt, and before a token.")] = (
        "128,512"
    ),
    phases: Annotated[str, typer.Option(help="prefill, decode, or both.")] = "prefill,decode",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contestant.")] = 7,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode in a turn.")] = 8,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of each contestant; by default all cores.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the tokens.")] = 0,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: what a process computes, on a machine that is busy.")
    ] = "wall",
    rope: Rope = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every turn; a later run goes on from there."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a web page with charts.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a table for a README.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Measure again what FILE holds.")] = False,
) -> None:
    """Measure implementations of a model in turn, beside what the machine can do.

    Each runs in a process of its own; one that fails is a row with its reason, and status 1.
    """
    import os

    from seqmix.bench.result import Settings
    from seqmix.cli.bench import bench_model, numbers, words

    settings = Settings(
        model,
        rope,
        words(backends),
        words(peers),
        rounds,
        tokens,
        threads or os.cpu_count() or 1,
        seed,
        clock,
    )
    given = (numbers(lengths), words(phases))
    raise typer.Exit(bench_model(settings, *given, json, html, markdown, fresh))


@app.command()
def train(
    config: Annotated[
        Path, typer.Argument(help="A file (.toml, .json): [model], [task], [training].")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of this training.")],
    resume: Annotated[bool, typer.Option(help="Go on from the checkpoint in the folder.")] = True,
    tensorboard: Annotated[bool, typer.Option(help="Write for TensorBoard too.")] = False,
    strategy: Annotated[
        str | None,
        typer.Option(help="Of several processes: ddp (each a whole model) or fsdp (each a share)."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a model on a task or on text; the same command goes on where it was stopped.

    Several processes: torchrun --nproc-per-node 2 -m seqmix train CONFIG -o OUT. They find the
    same losses as one, but for rounding. With --strategy fsdp no process holds the whole model.

    [training] has steps, batch, accumulate (micro-batches per step), rate, warm_up, lowest,
    weight_decay, betas, clip, precision (model or bf16-mixed), seed, log_every, test_every,
    save_every, test_batch, and to stop early: stop (loss or accuracy), stop_at, patience.

    [task] has a kind, such as mqar or text. Of text: files, length (tokens of a row), tokenizer
    (bytes, bpe with its vocabulary, or a checkpoint that has one), split, separator,
    held_out_files, held_out, cache.

    OUT gets training.ckpt, metrics.csv, and at the end model and report.json.
    """
    from seqmix.cli.train import train_model

    raise typer.Exit(train_model(config, out, resume, tensorboard, strategy, json))


@evaluations.callback(invoke_without_command=True)
def list_evaluations(ctx: typer.Context) -> None:
    """Print the names where none is given."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@new.command("mixer")
def new_mixer(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the mixer is called.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder; by default seqmix-NAME.")
    ] = None,
) -> None:
    """Write a package with a mixer that works, its entry point and its test."""
    from seqmix.cli.new import write_mixer_package

    write_mixer_package(name, out)
