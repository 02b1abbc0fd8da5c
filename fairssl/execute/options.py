"""Where and how a grid is run, as the user says it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairssl.execute.loggers import check_loggers
from fairssl.execute.submission import check_submit
from fairssl.machine import eager_asked
from fairssl.registry import did_you_mean
from fairssl.types import UserError

EXECUTORS = ("local", "ray", "slurm")


@dataclass(frozen=True)
class Settings:
    """What a worker must know. Nothing here is part of a key, or may change a result but in rounding."""

    roots: Mapping[str, Path | None]  # dataset -> where it lies
    device: str = "cpu"
    retry_failed: bool = False
    checkpoint_seconds: float = 60.0
    checkpoint_epochs: int = 0  # 0: by the clock alone
    loggers: tuple[str, ...] = ()  # besides the CSV
    eval_every: int = 0  # epochs between two looks at the validation split; 0: none
    pack: int = 0  # pretrainings that share a device at a time; 0: as many as fill it
    eager: bool = False  # on a GPU, take every step eagerly and compile nothing
    compile: bool = False  # on a CPU too, compile the augmentation
    eager_steps: frozenset[str] = frozenset()  # by `step_key`: whose steps are known not to be capturable


@dataclass(frozen=True)
class Options:
    """Where and how a grid is run. Nothing here is part of a key. A combination that makes no sense is a `UserError`."""

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    executor: str = "local"  # of EXECUTORS
    workers: int | None = None  # processes at once; None: as many as pay
    devices: int = 1  # of each worker: they train each run together
    pack: int | None = None  # seeds of a run that share a device; None: as many as fill it
    num_gpus: float | None = None  # per Ray task
    submit: Mapping[str, Any] = field(default_factory=dict)  # parameters of submitit, for Slurm
    checkpoint_minutes: float = 1.0  # at most that much work is lost
    checkpoint_epochs: int = 0  # also after every so many epochs; 0: not
    eval_every: int = 0  # judge the validation split after every so many epochs; 0: not
    loggers: tuple[str, ...] = ()  # besides the CSV
    retry_failed: bool = False  # also run the failed and diverged runs again
    eager: bool = field(default_factory=eager_asked)  # on a GPU, take steps eagerly and compile nothing: for debugging
    compile: bool = False  # on a CPU too, compile the augmentation
    force: bool = False  # train and judge everything again, also what is there

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UserError(f"unknown --executor {self.executor!r}{did_you_mean(self.executor, EXECUTORS)}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"--workers {self.workers}: must be at least 1")
        if self.num_gpus is not None and self.executor != "ray":
            raise UserError("--num-gpus is for --executor ray")
        if self.num_gpus is not None and self.num_gpus < 0:
            raise UserError(f"--num-gpus {self.num_gpus}: must be at least 0")
        if self.devices < 1:
            raise UserError(f"--devices {self.devices}: must be at least 1")
        if self.devices > 1 and self.executor != "local":
            raise UserError(
                f"--devices {self.devices} is for --executor local; elsewhere start the command by torchrun"
            )
        if self.submit and self.executor != "slurm":
            raise UserError("--submit is for --executor slurm")
        object.__setattr__(self, "submit", check_submit(self.submit))
        if not self.checkpoint_minutes > 0:
            raise UserError(f"--checkpoint-minutes {self.checkpoint_minutes}: must be above 0")
        if self.checkpoint_epochs < 0:
            raise UserError(f"--checkpoint-epochs {self.checkpoint_epochs}: must be at least 0")
        if self.eval_every < 0:
            raise UserError(f"--eval-every {self.eval_every}: must be at least 0")
        if self.eager and self.compile:
            raise UserError(
                "--compile compiles the augmentation, --eager (or FAIRSSL_EAGER) compiles nothing; give one"
            )
        self._check_pack()
        object.__setattr__(self, "loggers", tuple(dict.fromkeys(self.loggers)))
        check_loggers(self.loggers)

    def _check_pack(self) -> None:
        if self.pack is None:
            return
        if self.pack < 1:
            raise UserError(f"--pack {self.pack}: a number of seeds, at least 1, or auto")
        if self.pack > 1 and self.executor == "ray":
            raise UserError(
                f"--pack {self.pack} is not for --executor ray; tasks share a GPU by --num-gpus {1 / self.pack:g}"
            )
        if self.pack > 1 and self.devices > 1:
            raise UserError(
                f"--pack {self.pack} --devices {self.devices}: seeds share a device, or devices share a run; not both"
            )

    def settings(self, roots: Mapping[str, Path | None], device: str | None = None) -> Settings:
        """What each worker is told."""
        alone = self.executor == "ray" or self.devices > 1
        return Settings(
            roots=roots,
            device=device or self.device,
            retry_failed=self.retry_failed,
            checkpoint_seconds=60 * self.checkpoint_minutes,
            checkpoint_epochs=self.checkpoint_epochs,
            eval_every=self.eval_every,
            loggers=tuple(self.loggers),
            pack=(1 if alone else 0) if self.pack is None else self.pack,
            eager=self.eager,
            compile=self.compile,
        )
