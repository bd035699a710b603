"""The commands ``seqmix eval perplexity``, ``passkey`` and ``temperature``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from seqmix_longcontext.subject import Subject

__all__ = ["evaluate_passkey", "evaluate_perplexity", "evaluate_temperature"]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="What to evaluate.")]
Rope = Annotated[
    str,
    typer.Option(
        help="Position encodings, with commas: none, linear:2, ntk:2, ntk-by-parts:2, yarn:2, "
        "dynamic-yarn, .. each with +option=value for more."
    ),
]
Text = Annotated[list[Path], typer.Option(help="A text file; repeat for more.")]
Bos = Annotated[bool, typer.Option(help="Begin with the model's first token.")]
Chunk = Annotated[int, typer.Option(min=1, help="Tokens that are read at once.")]
Dtype = Annotated[str | None, typer.Option(help="f32, bf16, f16 or f64; the model's own if not.")]
Backend = Annotated[str, typer.Option("--backend", "-b", help="What runs the model.")]
Device = Annotated[str, typer.Option(help="Of torch: cpu, cuda, ..")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Results; the same command goes on there.")]
Plot = Annotated[bool, typer.Option("--plot/--no-plot", help="Draw; needs matplotlib.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WITHOUT = "ask for none with --no-plot"


def evaluate_perplexity(
    model: Model,
    text: Text,
    rope: Rope = "none",
    lengths: Annotated[str, typer.Option(help="Contexts in tokens.")] = "512,1024,2048",
    windows: Annotated[
        str, typer.Option(help="Documents from each text: one number, or one for each length.")
    ] = "1",
    mode: Annotated[
        str, typer.Option(help="single: a document cut at the length; sliding: windows over it.")
    ] = "single",
    stride: Annotated[int, typer.Option(min=1, help="New tokens of a sliding window.")] = 256,
    tokens: Annotated[
        int | None, typer.Option(help="Of a document in sliding mode; the longest length if not.")
    ] = None,
    bos: Bos = False,
    chunk: Chunk = 512,
    dtype: Dtype = None,
    backend: Backend = "torch",
    weights: Annotated[
        str | None, typer.Option(help="Smaller matrices, where the backend has them: int8, ..")
    ] = None,
    device: Device = "cpu",
    out: Out = Path("out/perplexity"),
    plot: Plot = True,
    as_json: Json = False,
) -> None:
    """Measure perplexity on text against the length of the context.

    Documents are stretches of the texts, from the beginning on in equal distances. Writes
    perplexity.csv, documents.csv and perplexity.png. A killed run goes on where it stopped.
    """
    from seqmix.plots import check_plots
    from seqmix_longcontext.bars import bar
    from seqmix_longcontext.lists import whole_numbers
    from seqmix_longcontext.methods import parse_methods
    from seqmix_longcontext.perplexity import measure_perplexity
    from seqmix_longcontext.plan import Plan, read_documents
    from seqmix_longcontext.plots import plot_perplexity

    if plot:
        check_plots(WITHOUT)
    sizes, counts = whole_numbers(lengths, "--lengths"), whole_numbers(windows, "--windows")
    subject = _subject(model, backend, dtype, device, weights)
    config = subject.checkpoint.config
    methods = parse_methods(rope, config)
    size = max(sizes) if tokens is None or mode == "single" else max(tokens, *sizes)
    documents = read_documents(text, subject.tokenizer, size, max(counts), _bos(config, bos))
    several = [count * len(text) for count in counts] if len(counts) > 1 else []
    plan = Plan(documents, sizes, several, mode, stride)
    with bar(plan.tokens * len(methods), "tokens") as told:
        found = measure_perplexity(subject, methods, plan, out, chunk=chunk, told=told)
    if plot:
        title = f"{config.name}, {mode} windows"
        plot_perplexity(found.rows, out / "perplexity.png", title, config.context_length)
    _print(found.rows, as_json, "length", "perplexity")


def evaluate_passkey(
    model: Model,
    rope: Rope = "none",
    lengths: Annotated[str, typer.Option(help="Contexts in tokens, answer included.")] = "512,1024",
    depths: Annotated[
        str, typer.Option(help="Where the key is hidden, from 0 to 1; or random.")
    ] = "0,0.25,0.5,0.75,1",
    trials: Annotated[int, typer.Option(min=1, help="Keys at each length and depth.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of keys and depths.")] = 0,
    chunk: Chunk = 512,
    dtype: Dtype = None,
    backend: Backend = "torch",
    device: Device = "cpu",
    out: Out = Path("out/passkey"),
    plot: Plot = True,
    as_json: Json = False,
) -> None:
    """Hide a number in a long text, and ask for it (Mohtashami and Jaggi 2023).

    An answer is right when its first number is exactly the key. Writes passkey.csv, trials.csv and
    the heat map passkey.png. A killed run goes on where it stopped.
    """
    from seqmix.plots import check_plots
    from seqmix_longcontext.bars import bar
    from seqmix_longcontext.lists import numbers, whole_numbers
    from seqmix_longcontext.methods import parse_methods
    from seqmix_longcontext.passkey import Hunt, measure_passkey
    from seqmix_longcontext.plots import plot_passkey

    if plot:
        check_plots(WITHOUT)
    places = () if depths == "random" else numbers(depths, "--depths")
    hunt = Hunt(whole_numbers(lengths, "--lengths"), places, trials, seed)
    subject = _subject(model, backend, dtype, device)
    methods = parse_methods(rope, subject.checkpoint.config)
    with bar(len(hunt) * len(methods), "prompts") as told:
        found = measure_passkey(subject, methods, hunt, out, chunk=chunk, told=told)
    if plot:
        title = f"Passkey retrieval, {subject.checkpoint.config.name}"
        plot_passkey(found.rows, out / "passkey.png", title)
    _print(found.rows, as_json, "length", "accuracy")


def evaluate_temperature(
    model: Model,
    text: Text,
    rope: Rope = "yarn:2,yarn:4",
    values: Annotated[
        str, typer.Option(help="Values of 1/sqrt(t).")
    ] = "0.95,1,1.05,1.1,1.15,1.2,1.25,1.3",
    length: Annotated[
        int | None, typer.Option(help="Tokens; the context that a factor reaches if not.")
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Documents from each text.")] = 1,
    segments: Annotated[int, typer.Option(min=1, help="Parts with a perplexity each.")] = 8,
    bos: Bos = False,
    chunk: Chunk = 512,
    dtype: Dtype = None,
    backend: Backend = "torch",
    device: Device = "cpu",
    out: Out = Path("out/temperature"),
    plot: Plot = True,
    as_json: Json = False,
) -> None:
    """Find the best softmax temperature of YaRN at several scales (YaRN, appendix A.3).

    Fits c of 1/sqrt(t) = c ln(s) + 1; the paper has 0.1. Writes temperature.csv, best.csv and
    temperature.png. A killed run goes on where it stopped.
    """
    from seqmix.plots import check_plots
    from seqmix_longcontext.bars import bar
    from seqmix_longcontext.lists import numbers
    from seqmix_longcontext.methods import parse_methods
    from seqmix_longcontext.plan import read_documents
    from seqmix_longcontext.plots import plot_temperature
    from seqmix_longcontext.temperature import measure_temperature

    if plot:
        check_plots(WITHOUT)
    tried = numbers(values, "--values")
    subject = _subject(model, backend, dtype, device)
    config = subject.checkpoint.config
    methods = parse_methods(rope, config)
    sizes = [length or method.config(config).context_length for method in methods]
    documents = read_documents(text, subject.tokenizer, max(sizes), windows, _bos(config, bos))
    with bar(sum(sizes) * len(documents) * len(tried), "tokens") as told:
        sweep = measure_temperature(
            subject, methods, tried, documents, sizes, out,
            segments=segments, chunk=chunk, told=told,
        )  # fmt: skip
    if plot:
        plot_temperature(sweep.rows, sweep.best, sweep.coefficient, out / "temperature.png")
    if as_json:
        typer.echo(json.dumps({"best": sweep.best, "coefficient": sweep.coefficient}, indent=2))
        return
    _print(sweep.best, False)
    for row in sweep.best:
        if not row["inside"]:
            typer.echo(f"{row['method']}: the lowest perplexity is at the edge; try more values")
    if sweep.coefficient is not None:
        typer.echo(f"1/sqrt(t) = {sweep.coefficient:.4f} ln(s) + 1")


def _subject(
    model: str, backend: str, dtype: str | None, device: str, weights: str | None = None
) -> Subject:
    from seqmix.cli.loading import check_backend_name
    from seqmix.progress import progress
    from seqmix_longcontext.subject import Subject

    check_backend_name(backend)
    with progress(f"reading {model}"):
        return Subject.read(model, backend, dtype, device, weights)


def _bos(config: Any, wanted: bool) -> int | None:
    """The first token where it is wanted; ConfigError for a model that has none."""
    from seqmix.errors import ConfigError

    if wanted and config.bos is None:
        raise ConfigError(f"model '{config.name}' names no first token; leave --bos out")
    return config.bos if wanted else None


def _print(
    rows: list[dict[str, Any]], as_json: bool, across: str = "", value: str = "perplexity"
) -> None:
    """The rows as JSON or as a table, with one column per value of ``across`` where given."""
    from seqmix_longcontext.tables import pivot, show_table

    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif across:
        typer.echo(show_table(*pivot(rows, "method", across, value)))
    else:
        typer.echo(show_table(list(rows[0]), [list(row.values()) for row in rows]))
