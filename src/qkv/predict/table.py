"""A prediction for every row of a table: the columns it has, and the answers behind them.

The answers are kept in a file beside the output, OUTPUT.partial, one line for each chunk of rows, and are on the disk
before the next chunk begins. The same command goes on after the last whole line. A chunk is a function of the table
alone, so that a text is always predicted in the same company and an interrupted job ends with the same bytes. When all
rows are answered, table and answers are written together, in one step.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv import disk, runtime
from qkv.corpus import files
from qkv.corpus.formats import Columns, MissingColumn
from qkv.corpus.table_writer import Added, Writer, check_distinct, check_written, fresh_names, write_table
from qkv.corpus.tables import JSON_LINES, MISSING, Cell, Table, open_table
from qkv.predict.partial import Answer, Partial, locked
from qkv.predict.prediction import Prediction, Text, TextError
from qkv.predict.predictor import NEXT_SENTENCE, Predictor
from qkv.schema import Say, UserError, listed

CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2**20  # a chunk ends at the first of both
GENERATED_ROWS = 64  # rows of a chunk where the answer is generated text, which takes longer
SAMPLE = 100  # rows by which a column of texts is recognised
MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "recipe.toml")
FORMULA = ("=", "+", "-", "@")  # a spreadsheet may take a cell that begins so for a formula


@dataclass(frozen=True)
class TableProgress:
    """How far a job is."""

    rows: int  # that are answered
    total: int


@dataclass
class TableNotes:
    """What a user should know at the end of a job."""

    empty: int = 0  # rows without a text
    truncated: int = 0
    formulas: int = 0  # answers that a spreadsheet may take for a formula

    def sentences(self) -> list[str]:
        found = []
        if self.empty:
            found.append(f"{self.empty:,} rows have no text, and no answer")
        if self.truncated:
            found.append(f"{self.truncated:,} texts were truncated")
        if self.formulas:
            found.append(
                f"{self.formulas:,} answers begin with one of {' '.join(FORMULA)}: a spreadsheet may take them for "
                "formulas, so import these columns as text"
            )
        return found


@dataclass(frozen=True)
class Chunk:
    """Some rows of the table with their answers; the answer of a row without text is None."""

    records: list[list[Cell]]
    answers: list[Answer]
    truncated: int


@dataclass(frozen=True)
class TableJob:
    """What is to be predicted. `options` are those of `Predictor.predict`."""

    predictor: Predictor
    table: Table
    model_hash: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> list[str]:
        """What an answer is, as `predict --json` calls it; a probability for each label."""
        if labels := self._labels():
            return ["label", *(f"p({label})" for label in labels)]
        return ["value"] if self.predictor.config.head == "regression" else ["output"]

    @property
    def added(self) -> Added:
        """The columns of the answers, by names that the table does not have."""
        names = fresh_names(self.answers, self.table.names)
        numbers = {"label": names[1:], "value": names, "output": []}[self.answers[0]]
        return Added(names, frozenset(numbers))

    def _labels(self) -> tuple[str, ...]:
        if self.predictor.config.head == "pretraining" and self.table.columns.pair is not None:
            return NEXT_SENTENCE
        return self.predictor.labels if self.predictor.config.head == "classification" else ()

    def texts(self) -> Iterator[tuple[str, list[Cell], Text | None]]:
        """Every row: its place, its cells, and what is predicted from; None where there is no text."""
        columns, names = self.table.columns, self.table.names
        text, pair = names.index(columns.text), None if columns.pair is None else names.index(columns.pair)
        for place, record in self.table.records():
            first = _text(record[text], columns.text, place)
            second = None if pair is None else _text(record[pair], str(columns.pair), place)
            blank = not first.strip() and not (second or "").strip()
            yield place, record, None if blank else first if second is None else (first, second)

    def chunks(self, skip: int = 0) -> Iterator[Chunk]:
        """The rows after the first `skip`, with their answers."""
        most = GENERATED_ROWS if self.predictor.generates else CHUNK_ROWS
        places, records, texts, characters = list[str](), list[list[Cell]](), list[Text | None](), 0
        for number, (place, record, text) in enumerate(self.texts()):
            if number < skip:
                continue
            places.append(place)
            records.append(record)
            texts.append(text)
            characters += len(text) if isinstance(text, str) else sum(map(len, text or ()))
            if len(texts) == most or characters >= CHUNK_CHARACTERS:
                yield self._answered(places, records, texts)
                places, records, texts, characters = [], [], [], 0
        if texts:
            yield self._answered(places, records, texts)

    def _answered(self, places: list[str], records: list[list[Cell]], texts: list[Text | None]) -> Chunk:
        real = [number for number, text in enumerate(texts) if text is not None]
        try:
            predictions = self.predictor.predict([texts[n] or "" for n in real], **self.options)
        except TextError as error:
            raise UserError(f"{places[real[error.number - 1]]}{error.problem}") from None
        answers: list[Answer] = [None] * len(texts)
        for number, one in zip(real, predictions, strict=True):
            answers[number] = _cells(one)
        runtime.release_freed_memory()
        return Chunk(records, answers, sum(one.truncated for one in predictions))


def open_job(predictor: Predictor, file: Path, columns: Columns, model_hash: str, options: dict[str, Any]) -> TableJob:
    """A job whose columns and options are checked."""
    predictor.predict([], **options)  # refuses what does not fit the model
    if options.get("best", 1) != 1:
        raise UserError(f"best = {options['best']}: a table has one output for each row; accepted: 1")
    if predictor.input_options.pairs and columns.pair is None:
        raise UserError(f"{file}: this model needs pairs; name the second column with --pair NAME")
    try:
        return TableJob(predictor, open_table(file, columns), model_hash, options)
    except MissingColumn as error:
        raise error.advise("--column" if error.column == "text" else "--pair") from None


def choose_columns(file: Path, names: list[str], given: Columns | None, own: Columns | None, say: Say) -> Columns:
    """The columns that texts are read from: those that are `given`, else the run's `own` if the table has them, else
    `text`, else the only column that looks like texts. `say` is told which."""
    if given is not None:
        return given
    if own is not None and own.text in names:
        say(f"texts: column {own.text!r}, as in the run's recipe")
        return own if own.pair in names else Columns(own.text, None, None)
    if "text" in names or not names:
        return Columns("text", None, None)
    likely = names if len(names) == 1 else _text_columns(file, names)
    if len(likely) != 1:
        found = f"{len(likely)} columns look like texts" if likely else "no column looks like texts"
        raise UserError(f"{file}: {found}; columns: {listed(names[:50])}; choose one with --column NAME")
    say(f"texts: column {likely[0]!r}, the only one that looks like texts")
    return Columns(likely[0], None, None)


def _text_columns(file: Path, names: list[str]) -> list[str]:
    """Columns of which, in the first rows, most cells that are not empty have two words or more."""
    table = open_table(file, Columns(names[-1], None, None))
    cells: dict[str, list[Cell]] = {name: [] for name in names}
    for number, (_, record) in enumerate(table.records()):
        if number == SAMPLE:
            break
        for name, cell in zip(table.names, record, strict=True):
            cells.setdefault(name, []).append(cell)
    full = {name: [cell for cell in some if isinstance(cell, str) and cell.strip()] for name, some in cells.items()}
    return [name for name, some in full.items() if some and 2 * sum(len(cell.split()) > 1 for cell in some) > len(some)]


def model_hash(folder: Path) -> str:
    """sha256 over the files that decide what a model predicts."""
    found = [file for file in folder.iterdir() if file.name in MODEL_FILES or file.suffix in (".safetensors", ".bin")]
    return files.fingerprint(sorted(found))


# --- to a stream


def stream_table(job: TableJob, writer: Writer, notes: TableNotes) -> Iterator[TableProgress]:
    """Write each row as soon as it is answered."""
    added, total, rows = job.added, sum(1 for _ in job.texts()), 0
    yield TableProgress(rows, total)
    for chunk in job.chunks():
        answers = list(_noted(chunk.answers, added, notes))
        notes.truncated += chunk.truncated
        writer.write([*record, *answer] for record, answer in zip(chunk.records, answers, strict=True))
        rows += len(answers)
        yield TableProgress(rows, total)


# --- to a file, in pieces


def predict_table(job: TableJob, output: Path, notes: TableNotes) -> Iterator[TableProgress]:
    """Write the table with its answers, going on where an interrupted job ended. The first report says where."""
    check_output(job.table, output)
    total = sum(1 for _ in job.texts())  # also: nothing is predicted from a table that cannot be read to its end
    with locked(output):
        disk.remove_leftovers(output.parent, re.compile(re.escape(f".{output.name}.tmp-") + r"\d+"))
        partial = Partial(partial_of(output), _heading(job))
        rows = partial.open()
        yield TableProgress(rows, total)
        for chunk in job.chunks(skip=rows):
            partial.append(chunk.answers, chunk.truncated)
            rows += len(chunk.answers)
            yield TableProgress(rows, total)
        if files.sha256(job.table.path) != partial.heading["input"]:
            raise UserError(f"{job.table.path}: changed while it was being read; run the command again")
        answers = (answer for chunk, _ in partial.chunks() for answer in _noted(chunk, job.added, notes))
        notes.truncated += sum(truncated for _, truncated in partial.chunks())
        kind = output.suffix.lower()
        disk.replace_file(output, lambda path: write_table(path, kind, job.table, job.added, answers))
        partial.path.unlink()


def check_output(table: Table, output: Path) -> None:
    """Whether a table can be written there."""
    check_written(output)
    if os.path.exists(output) and output.samefile(table.path):  # noqa: PTH110  (Path raises where a name is too long)
        raise UserError(f"{output}: is the table that is read; choose another name with -o")
    if not output.absolute().parent.is_dir():
        raise UserError(f"{output}: its folder does not exist; make it first: mkdir -p {output.parent}")
    kind = output.suffix.lower()
    if kind == ".parquet" or kind in JSON_LINES:
        check_distinct(table, kind)


def partial_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


def _heading(job: TableJob) -> dict[str, Any]:
    """What the answers depend on."""
    return {
        "input": files.sha256(job.table.path),
        "bytes": job.table.path.stat().st_size,
        "model": job.model_hash,
        "columns": [job.table.columns.text, job.table.columns.pair],
        "options": dict(sorted(job.options.items())),
    }


def _noted(answers: Iterable[Answer], added: Added, notes: TableNotes) -> Iterator[Sequence[Cell]]:
    """Answers as cells, counting those that a user should know of."""
    for answer in answers:
        notes.empty += answer is None
        notes.formulas += answer is not None and isinstance(answer[0], str) and may_be_formula(answer[0])
        yield [None] * len(added.names) if answer is None else answer


def may_be_formula(cell: str) -> bool:
    """Whether a spreadsheet may take a cell for a formula. A number is none."""
    if not cell.startswith(FORMULA):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _cells(one: Prediction) -> list[Cell]:
    if one.label is not None and one.probabilities is not None:
        return [one.label, *(round(share, 6) for share in one.probabilities.values())]
    return [one.output] if one.value is None else [float(f"{one.value:.6g}")]


def _text(cell: Cell, column: str, place: str) -> str:
    if cell is None or cell is MISSING:
        return ""
    if not isinstance(cell, str):
        raise UserError(f"{place}: {column} is {json.dumps(cell, default=str)[:60]}, not text")
    return cell
