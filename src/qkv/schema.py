"""Strict, frozen tables of settings that explain themselves, and `UserError`.

This is the mechanism; `config/recipe.py` declares the keys. A key is declared once, with its default, accepted values,
description and unit. Help texts, error messages and the comments in a written recipe all come from that declaration.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

LARGEST_FILE = 1_000_000  # bytes; a recipe is a page of text, anything larger is another kind of file
Say = Callable[[str], None]  # receives messages for the user, one sentence each


class UserError(ValueError):
    """An error in the user's input: shown as one sentence, never as a traceback; exit code 2."""


def silent(sentence: str) -> None:
    """A `Say` that discards its message."""


def key(default: Any, sentence: str, unit: str = "", tasks: tuple[str, ...] = (), **limits: float) -> Any:
    """Declare one recipe key: default, description, unit, the tasks that read it (none: all), and its limits (`ge`,
    `gt`, `le`, ...)."""
    prefix = f"{', '.join(tasks)}: " if tasks else ""
    meta = {"unit": unit, "tasks": list(tasks)}
    extra: dict[str, Any] = {"description": prefix + sentence, "json_schema_extra": meta, **limits}
    return Field(default, **extra)


class Section(BaseModel):
    """Base class of every table in a recipe: frozen, and strict about unknown keys.

    `renamed` maps a former key, or a former `key = value`, to what replaces it. A recipe that still has one is refused
    with the new spelling. `suggested` maps what other libraries call a key to what it is called here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    renamed: ClassVar[Mapping[str, str]] = {}
    suggested: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str = "") -> Self:
        """Check a table of plain values. `where` says in errors what the table is, for example a file name."""
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            sentences = [_sentence(cls, detail) for detail in error.errors()]
            prefix = f"{where}: " if where else ""
            raise UserError("\n".join(prefix + sentence for sentence in sentences)) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys changed, checked again (pydantic's own `model_copy` checks nothing)."""
        return type(self).read({**self.model_dump(), **changes})

    def to_toml(self) -> str:
        """A file that explains itself, each key below its sentence; it reads back to an equal section."""
        lines: list[str] = []
        for path, value, sentence in describe(self):
            name = path.rpartition(".")[2]
            if isinstance(value, Section):
                lines += [f"[{path}]  # {sentence}", ""]
            else:
                lines += [f"# {sentence}", tomli_w.dumps({name: value})]
        return "\n".join(lines)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file, or one sentence on why there is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            raise UserError(f"{path}: larger than {LARGEST_FILE:,} bytes; a recipe is a short TOML file")
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a recipe is a TOML file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); a recipe is a TOML file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # not TOML; a number of 5,000 digits; a name no file can have
        raise UserError(f"{path}: not valid TOML: {error}") from None


def override(table: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of a table with dotted settings applied: `model.layers=8`, `train.dropout=0.2`, `task=fill`."""
    try:
        result = _copied(table)
    except RecursionError:
        raise UserError("tables are nested too deeply; a recipe has two levels") from None
    for setting in settings:
        path, equals, text = setting.partition("=")
        names = [name.strip() for name in path.split(".")]
        if not equals or not all(names):
            raise UserError(f"--set {setting}: must have the form key=value, for example model.layers=8")
        inner = result
        for depth, name in enumerate(names[:-1]):
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise UserError(
                    f"--set {setting}: {'.'.join(names[: depth + 1])} is a single value, not a table of keys"
                )
        inner[names[-1]] = _value(text.strip())
    return result


def describe(section: Section, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every key below a section: dotted path, value, sentence with unit and accepted values. Tables come last."""
    fields = type(section).model_fields
    for name in sorted(fields, key=lambda n: isinstance(getattr(section, n), Section)):
        value, field = getattr(section, name), fields[name]
        extra = field.json_schema_extra
        notes = [str(extra["unit"]) if isinstance(extra, dict) else "", _accepted(type(section), name)]
        shown = "; ".join(note for note in notes if note)
        yield prefix + name, value, f"{field.description}" + (f" [{shown}]" if shown else "")
        if isinstance(value, Section):
            yield from describe(value, f"{prefix}{name}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the nearest known one if there is one, and the list."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return (f"did you mean {close[0]}? " if close else "") + f"known: {', '.join(names)}"


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) if isinstance(value, Mapping) else value for name, value in table.items()}


def _value(text: str) -> Any:
    """A setting's right side as TOML reads it; what TOML does not read is a plain string, so quotes are not needed."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also a number of more than 4,300 digits
        return text
    return table["value"] if len(table) == 1 else text


def fits_a_line(name: str) -> bool:
    """Whether a name can be printed on one line: a label from a table, or from an untrusted config."""
    return name.isprintable() and 0 < len(name) <= 200


def listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _accepted(section: type[Section], name: str) -> str:
    """What a key takes, in words: the names of a choice, or the limits of a number."""
    field = section.model_fields[name]
    choices = [str(choice).lower() if isinstance(choice, bool) else choice for choice in get_args(field.annotation)]
    if choices:
        return f"one of {listed(choices)}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "below"}
    limits = [f"{words[name]} {getattr(m, name):,}" for m in field.metadata for name in words if hasattr(m, name)]
    return " and ".join(limits)


def _sentence(section: type[Section], detail: ErrorDetails) -> str:
    """One pydantic error as a sentence: the key, the value found, what would be accepted."""
    names = [str(part) for part in detail["loc"]]
    path, found = _short(repr(".".join(names))[1:-1]), _shown(detail["input"])
    inner = _section_at(section, names[:-1])
    name, value = names[-1] if names else "", detail["input"]
    former = f"{name} = {value}" if isinstance(value, str) and name in inner.model_fields else name
    if former in inner.renamed:
        return f"{path} = {found}: was renamed; write {inner.renamed[former]}"
    if detail["type"] == "extra_forbidden":
        for table, field in inner.model_fields.items():  # a key without its table
            if isinstance(field.annotation, type) and names[-1] in getattr(field.annotation, "model_fields", ()):
                return f"{path}: unknown key; did you mean {table}.{names[-1]}?"
        if name in inner.suggested:
            return f"{path}: unknown key; did you mean {inner.suggested[name]}?"
        return f"{path}: unknown key; {nearest(name, inner.model_fields)}"
    if detail["type"] == "value_error":
        return (f"[{path}] " if path else "") + str(detail["ctx"]["error"])
    kinds = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "string": "text",
        "model": "a table of keys",
    }
    kind = next((words for start, words in kinds.items() if detail["type"].startswith(start)), "")
    accepted = ", ".join(part for part in (kind, _accepted(inner, names[-1])) if part)
    return f"{path} = {found}: must be {accepted}"


def _short(text: str) -> str:
    """What a user wrote, at a length that fits a sentence."""
    return text if len(text) <= 60 else text[:57] + "..."


def _shown(value: Any) -> str:
    try:
        return _short(repr(value))
    except (ValueError, RecursionError):  # more than 4,300 digits, or 1,000 levels
        return f"({type(value).__name__} too large to print)"


def _section_at(section: type[Section], names: Iterable[str]) -> type[Section]:
    for name in names:
        section = cast(type[Section], section.model_fields[name].annotation)
    return section
