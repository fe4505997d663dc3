"""Constraints hold, or are refused by name before the job runs."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from service.domain.request import Constraint, Grammar, JsonSchema, Regex, Sampling
from service.ports.engine import ConstraintError, EndReason
from tests.contract.engines.recorder import Recorder, run
from tests.contract.engines.suite import job
from tests.support.exllamav2.engines import Opened, opened, random_ids

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
        "additionalProperties": False,
    }
)
GBNF = 'root ::= "yes " word\nword ::= [a-z] [a-z]? [a-z]?'
LARK = 'start: "yes " /[a-z]{1,3}/'


def constrained(tiny: Opened, constraint: Constraint, seed: int = 1, **changes: object) -> Recorder:
    wanted = replace(job(random_ids(10, seed), 400), constraint=constraint, sampling=Sampling(seed=seed))
    return run(tiny.engine, replace(wanted, **changes))  # type: ignore[arg-type]  # names come from Job


@pytest.mark.parametrize("seed", range(4))
def test_json_is_valid_under_its_schema(tiny: Opened, seed: int) -> None:
    recorder = constrained(tiny, JsonSchema(SCHEMA), seed)
    assert recorder.ended().reason is EndReason.EOS
    found = json.loads(recorder.data)
    assert set(found) == {"n", "ok"} and 0 <= found["n"] <= 99 and isinstance(found["ok"], bool)


@pytest.mark.parametrize("pattern", ["[0-9]{4}-[0-9]{2}", "(yes|no) please", "[あ-ん]{3}"])
def test_a_regex_matches_as_a_whole(tiny: Opened, pattern: str) -> None:
    recorder = constrained(tiny, Regex(pattern))
    assert recorder.ended().reason is EndReason.EOS
    assert re.fullmatch(pattern, recorder.data.decode())


@pytest.mark.parametrize("grammar", [GBNF, LARK], ids=["GBNF", "Lark"])
def test_a_grammar_of_either_notation_holds(tiny: Opened, grammar: str) -> None:
    recorder = constrained(tiny, Grammar(grammar))
    assert re.fullmatch(r"yes [a-z]{1,3}", recorder.data.decode())


def test_constraints_hold_beside_each_other_and_beside_free_text(tiny: Opened) -> None:
    free = replace(job(random_ids(30, 2), 40), ignore_eos=True)
    alone = run(tiny.engine, replace(free, id="alone"))
    jobs = [
        free,
        replace(job(random_ids(10, 3), 100), constraint=Regex("[a-f]{20}"), sampling=Sampling(seed=1)),
        replace(job(random_ids(10, 4), 400), constraint=JsonSchema(SCHEMA), sampling=Sampling(seed=2)),
    ]
    recorders = [Recorder() for _ in jobs]
    for one, recorder in zip(jobs, recorders, strict=True):
        tiny.engine.submit(one, recorder.deliver)
    for recorder in recorders:
        recorder.ended()
    assert recorders[0].token_ids == alone.token_ids
    assert re.fullmatch(b"[a-f]{20}", recorders[1].data)
    json.loads(recorders[2].data)


def test_length_cuts_a_constrained_output(tiny: Opened) -> None:
    recorder = constrained(tiny, Regex("[a-z]{50}"), max_tokens=10)
    assert recorder.ended().reason is EndReason.LENGTH and recorder.token_count == 10


def test_a_finished_constraint_ends_it_whatever_else_was_asked(tiny: Opened) -> None:
    recorder = constrained(tiny, Regex("abc"), ignore_eos=True, min_tokens=9)
    assert recorder.data == b"abc" and recorder.ended().reason is EndReason.EOS


def test_a_bias_cannot_break_a_constraint(tiny: Opened) -> None:
    bias = Sampling(temperature=0, logit_bias=tuple((i, 100.0) for i in range(6, 40)))
    assert re.fullmatch(b"[0-9]{6}", constrained(tiny, Regex("[0-9]{6}"), sampling=bias).data)


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        (JsonSchema("{"), "json_schema"),
        (JsonSchema("[]"), "json_schema"),
        (JsonSchema('{"type": "nothing"}'), "json_schema"),
        (JsonSchema('{"not": {"type": "string"}}'), "json_schema"),
        (JsonSchema('{"properties": {"a": ' * 70 + "{}" + "}}" * 70), "json_schema"),
        (JsonSchema('{"$ref": "#/nowhere"}'), "json_schema"),
        (Regex("("), "regex"),
        (Regex("a(?=b)"), "regex"),
        (Regex(r"(a)\1"), "regex"),
        (Grammar("root ::= ("), "grammar"),
        (Grammar("start: nothing"), "grammar"),
        (Grammar("\x00"), "grammar"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_constraint_that_cannot_be_kept_is_refused_by_name(
    tiny: Opened, constraint: Constraint, name: str
) -> None:
    recorder = constrained(tiny, constraint)
    ended = recorder.ended()
    assert ended.reason is EndReason.FAILED and ended.invalid and recorder.pieces == []
    assert ended.error.startswith(name) and len(ended.error) < 500
    with pytest.raises(ConstraintError, match=name):
        tiny.engine.check(constraint)


def test_check_takes_what_a_job_can_have(tiny: Opened) -> None:
    for constraint in (JsonSchema(SCHEMA), Regex("[0-9]+"), Grammar(GBNF), Grammar(LARK)):
        tiny.engine.check(constraint)


@pytest.mark.parametrize("pattern", ["(" * 200 + "a" + ")*" * 200, "(a{1000}){1000}", "(.*a.{200}){20}"])
def test_a_hostile_pattern_takes_no_time(tiny: Opened, pattern: str) -> None:
    neighbour = Recorder()
    tiny.engine.submit(replace(job(random_ids(10, 8), 64), ignore_eos=True), neighbour.deliver)
    started = time.monotonic()
    ended = constrained(tiny, Regex(pattern), max_tokens=4).ended()
    assert time.monotonic() - started < 20
    assert ended.reason in (EndReason.FAILED, EndReason.LENGTH, EndReason.EOS)
    assert neighbour.ended().output_tokens == 64


def test_constraints_hold_with_speculation(model_folder: Path) -> None:
    with opened(model_folder, ngram_draft=True) as found:
        for seed in range(3):
            recorder = constrained(found, Regex("(ab|cd){20}"), seed)
            assert re.fullmatch(b"(ab|cd){20}", recorder.data)


def test_a_job_canceled_while_its_constraint_is_compiled_ends_once(tiny: Opened) -> None:
    recorder = Recorder()
    wanted = replace(job(random_ids(10, 1), 100), constraint=JsonSchema(SCHEMA))
    tiny.engine.submit(wanted, recorder.deliver)
    tiny.engine.cancel(wanted.id)
    assert recorder.ended().reason is EndReason.CANCELED
    assert run(tiny.engine, job(random_ids(10, 1), 2)).ended().reason is EndReason.LENGTH
    assert recorder.late == []
