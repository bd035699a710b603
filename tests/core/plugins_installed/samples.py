"""The throw-away distributions: one that is well, and one for everything that can go wrong."""

from __future__ import annotations

from tests.core.plugins_installed.wheels import Distribution

__all__ = ["SAMPLES"]

GOOD = Distribution(
    "Throwaway.Good",
    "1.2.0",
    {
        "throwaway_good/__init__.py": "",
        "throwaway_good/tasks.py": "task = 'the good task'\n",
        "throwaway_good/evaluation.py": """
            from typing import Annotated
            import typer

            def count(
                model: Annotated[str, typer.Argument(help="What to count.")],
                times: Annotated[int, typer.Option(min=1, help="How often.")] = 1,
            ) -> int:
                'Count the letters of a name.'
                print(times * len(model))
                return 0 if model else 1
        """,
        "throwaway_good/mixer.py": """
            import torch
            import seqmix

            ONE = torch.ones(1)

            class Config(seqmix.Strict):
                gain: float = 2.0

            class Gain(seqmix.SequenceMixer):
                Config = Config

                def __init__(self, config, width):
                    super().__init__()
                    self.gain = config.gain

                def forward(self, x, state, ctx):
                    return torch.where(ctx.valid.unsqueeze(-1), self.gain * x, 0.0), {}

                def flops(self, batch_size, seq_len):
                    return 0
        """,
        "throwaway_good/ops.py": """
            from seqmix_ir.defn import OpDef, op

            @op
            class Double(OpDef):
                name = "throwaway.double"
                operands = ("x",)
                results = ("y",)

                def infer(self, x):
                    return (x,)
        """,
        "throwaway_good/hooks.py": """
            import seqmix

            calls = []

            @seqmix.hookimpl
            def seqmix_rewrites(backend):
                return [print] if backend == "reference" else None

            @seqmix.hookimpl(trylast=True)
            def seqmix_choose_backend(candidates):
                candidates.reverse()
                return candidates[0]

            @seqmix.hookimpl
            def seqmix_compiled(executable):
                calls.append(executable)
        """,
    },
    {
        "seqmix.tasks": {"good_task": "throwaway_good.tasks:task"},
        "seqmix.evaluations": {"count": "throwaway_good.evaluation:count"},
        "seqmix.mixers": {"gain": "throwaway_good.mixer:Gain"},
        "seqmix.ops": {"throwaway.double": "throwaway_good.ops:Double"},
        "seqmix.hooks": {"good_hooks": "throwaway_good.hooks"},
    },
)

BROKEN = Distribution(
    "throwaway-broken",
    "0.3.1",
    {
        "throwaway_broken/__init__.py": "",
        "throwaway_broken/tasks.py": "import a_module_that_nobody_has\n",
        "throwaway_broken/leaves.py": "import sys\nsys.exit('no licence')\n",
        "throwaway_broken/hooks.py": "1 / 0\n",
    },
    {
        "seqmix.tasks": {
            "broken_task": "throwaway_broken.tasks:task",
            "leaving_task": "throwaway_broken.leaves:task",
            "empty_task": "throwaway_broken:task",
        },
        "seqmix.hooks": {"broken_hooks": "throwaway_broken.hooks"},
    },
)

FIRST, SECOND = (
    Distribution(
        f"throwaway-{name}",
        version,
        {f"throwaway_{name}.py": f"task = '{name}'\n"},
        {
            "seqmix.tasks": {
                "claimed_twice": f"throwaway_{name}:task",
                "said_twice": "throwaway_first:task",
            }
        },
    )
    for name, version in (("first", "1.0"), ("second", "2.5"))
)

FUTURE = Distribution(
    "throwaway-future",
    "9.0",
    {
        "throwaway_future.py": """
            class NextMajor:
                api = (2, 0)

            class NextMinor:
                api = (1, 99)

            class Past:
                api = (0, 3)

            class Odd:
                api = "1.0"
        """
    },
    {
        "seqmix.tasks": {
            "next_major": "throwaway_future:NextMajor",
            "next_minor": "throwaway_future:NextMinor",
            "past": "throwaway_future:Past",
            "odd": "throwaway_future:Odd",
        }
    },
)

WRONG = Distribution(
    "throwaway-wrong",
    "0.1",
    {
        "throwaway_wrong/__init__.py": "",
        "throwaway_wrong/mixer.py": "def make(config, width):\n    return None\n",
        "throwaway_wrong/evaluation.py": "five = 5\n",
        "throwaway_wrong/ops.py": """
            from seqmix_ir.defn import OpDef

            class Other(OpDef):
                name = "throwaway.other"
        """,
    },
    {
        "seqmix.mixers": {"no_mixer": "throwaway_wrong.mixer:make"},
        "seqmix.evaluations": {
            "no_function": "throwaway_wrong.evaluation:five",
        },
        "seqmix.ops": {"throwaway.misnamed": "throwaway_wrong.ops:Other"},
    },
)

HOOKS = Distribution(
    "throwaway-hooks",
    "0.2",
    {
        "throwaway_hooks/__init__.py": "",
        "throwaway_hooks/misspelt.py": """
            import seqmix

            @seqmix.hookimpl
            def seqmix_compiled(executable):
                raise AssertionError("a plugin with a misspelt hook is not used at all")

            @seqmix.hookimpl
            def seqmix_rewrite(backend):
                return []
        """,
        "throwaway_hooks/unknown_argument.py": """
            import seqmix

            @seqmix.hookimpl
            def seqmix_rewrites(backend, target):
                return []
        """,
        "throwaway_hooks/raising.py": """
            import seqmix

            @seqmix.hookimpl
            def seqmix_rewrites(backend):
                raise LookupError(f"no rules for {backend}")

            @seqmix.hookimpl
            def seqmix_choose_backend(module, candidates):
                return "elsewhere"

            @seqmix.hookimpl
            def seqmix_compiled(module, executable):
                raise OSError("disk full")
        """,
        "throwaway_hooks/no_rules.py": """
            import seqmix

            @seqmix.hookimpl
            def seqmix_rewrites(backend):
                return ["a rule"]
        """,
        "throwaway_hooks/future.py": "api = (7, 0)\n",
    },
    {
        "seqmix.hooks": {
            name: f"throwaway_hooks.{name}"
            for name in ("misspelt", "unknown_argument", "raising", "no_rules", "future")
        }
    },
)

SAMPLES = (GOOD, BROKEN, FIRST, SECOND, FUTURE, WRONG, HOOKS)
