"""The sentences at the top of the page: what was measured, and not a word more."""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_runs import bare, make_certificate, make_result, not_memorised, typed, without_oracle

from forsaken.report.words import GLOSSARY, heading, left_to_do, members, plain, summary, why_none
from forsaken.result import NO_VERDICT, Verdict

_WORDS: tuple[Any, ...] = ("forgotten", "not shown", "failed")


def everything(result: dict[str, Any]) -> str:
    said = summary(typed(result))
    return " ".join([said.headline, *said.done, *said.cost, *said.sure, *said.limits])


def test_a_whole_result() -> None:
    said = summary(typed(make_result(40)))
    assert said.headline == "A request to forget 40 records, which took 1.25 s"
    assert "took 40 of the 40 records for training members before and 1 after" in said.done[1]
    assert "(forgetting rate 0.97; a model retrained without them: 0.90)" in said.done[1]
    assert (
        "AUC of 0.97 before and 0.52 after (0.5: no threshold helps; retrained: 0.50; 0 tells as much as 1)"
        in said.done[-1]
    )
    assert said.cost[0].startswith("It took 1.25 s; retraining took 5.00 s, 4.0 times as long. 25 %")
    assert said.cost[1] == "The accuracy on 20 test samples went from 95.0 % to 90.0 % (retrained: 94.0 %)."
    assert (
        "took 4.0 % fewer for members than before (collateral forgetting rate 0.040; retrained: 0.010" in said.cost[2]
    )
    assert "one run (seed 0)" in said.sure[0]
    assert "balanced accuracy of 0.68" in said.sure[1]
    assert said.limits[-1] == "Not shown: an attacker can tell."


def test_counts_of_members_need_no_scores() -> None:
    result = make_result(10) | {"samples": None}
    assert members(typed(result)) == (10, 1)


def test_a_rate_that_is_not_one_is_not_called_one() -> None:
    assert "forgetting rate over 0.99;" in everything(make_result(2000) | {"fr": 0.9995})


def test_more_or_less_than_retraining_is_said() -> None:
    assert "not better" in everything(make_result() | {"fr": 1.0})
    assert "below the retrained model's" in everything(make_result() | {"fr": 0.5})
    assert "not better" not in everything(make_result() | {"fr": 0.9})


@pytest.mark.parametrize(
    ("quality", "words"),
    [(0.55, "verdict is weak"), (0.61, "one black-box test"), (None, "is not known, so its verdict is a hint")],
)
def test_how_far_the_oracle_can_be_trusted(quality: float | None, words: str) -> None:
    result = make_result()
    assert words in everything(result | {"oracle": result["oracle"] | {"balanced_accuracy": quality}})


def test_an_oracle_of_unknown_quality() -> None:
    assert "is not known" in everything(make_result() | {"oracle": None})


def test_without_an_oracle() -> None:
    text = everything(without_oracle(make_result()))
    assert "No membership oracle was given, so there is no forgetting rate." in text
    assert "AUC of 0.97 before and 0.52 after" in text
    assert "a stronger attack may see more" in text
    assert "no retrained model as a yardstick" in text
    assert "oracle took" not in text


def test_with_nothing_to_measure_by() -> None:
    text = everything(bare(make_result()))
    assert "nothing here tests for memory" in text
    assert "no test data, so what it cost in accuracy is not known" in text


def test_what_can_still_be_told_apart() -> None:
    result = make_result()
    said = "So they can still be told apart to some degree."
    assert said not in everything(result)
    for after in (0.7, 0.3):
        assert said in everything(result | {"separation": result["separation"] | {"after": after}})


def test_nothing_to_forget() -> None:
    result = not_memorised(make_result())
    said = summary(typed(result))
    assert said.headline == "Nothing was changed, and nothing shows that the 12 records were not memorised"
    assert "the model knew the 12 records no better than" in said.done[0]
    assert "no weight was changed" in said.done[0]
    assert "It took under 0.01 s." in " ".join(summary(typed(result | {"seconds": 0.004, "retrain": None})).cost)
    assert "forgetting rate is undefined" in " ".join(said.done)
    assert "does not prove" in said.limits[0]
    assert "was changed to forget" not in everything(result)
    assert not any("old weights" in text for text in left_to_do(typed(result)))


def test_one_record() -> None:
    assert summary(typed(make_result(1))).headline == "A request to forget 1 record, which took 1.25 s"
    assert "rests on 1 record only" in everything(make_result(1))
    assert summary(typed(not_memorised(make_result(1)))).headline.endswith(
        "nothing shows that the 1 record was not memorised"
    )


def test_that_nothing_was_memorised_takes_evidence_beyond_the_method_s_own_measure() -> None:
    result = not_memorised(make_result())
    plain = everything(result)
    assert "There was nothing to forget" not in plain
    assert "may still recognise all of them" in plain
    by_oracle = result | {"counts": result["counts"] | {"memorised_before": 0, "memorised_after": 0}}
    by_references = result | {"target": result["target"] | {"target": "out-of-fold"}}
    for told, words in ((by_oracle, "an oracle that takes none of them"), (by_references, "models that never saw")):
        assert summary(typed(told)).headline == "Nothing was changed: the 12 records were not found memorised"
        assert words in everything(told)
        assert "may still recognise" not in everything(told)


def test_what_is_left_to_do() -> None:
    signed, unsigned = (make_certificate(signed=signed) for signed in (True, False))
    whole = typed(make_result())
    todo = left_to_do(whole, unsigned)
    assert todo[0].startswith("The drift passed 0.08")
    text = " ".join(todo)
    assert "12 rows of the training data belong to the forgotten records: see cleaned.parquet" in text
    assert "2 other training rows that stayed: each is an exact duplicate" in text
    assert "1 other training row that stayed: each is a near duplicate" in text
    assert "Keep the key" in text
    assert "Sign the certificate" in text
    assert "Delete the mask" not in text  # the certificate says that none was kept
    assert "Delete the mask" in " ".join(left_to_do(whole))
    assert "did not look at the training data" in " ".join(left_to_do(typed(bare(make_result()))))
    assert "Sign" not in " ".join(left_to_do(whole, signed))


def test_reasons() -> None:
    whole = make_result()
    few = typed(whole | {"counts": whole["counts"] | {"kept_judged": 0}})
    assert why_none(typed(whole), "fr") == "nothing was memorised"
    assert why_none(typed(without_oracle(whole)), "fr") == "no oracle"
    assert why_none(few, "cfr") == "no further training data were given"
    assert why_none(typed(whole), "cfr") == "no record to keep looked like a member"
    assert why_none(typed(whole), "oracle") == "not measured"
    assert why_none(typed(whole), "accuracy") == "no test data"


def test_records_that_are_too_alike_are_told() -> None:
    result = make_result(40)
    apart = result["separation"]
    alike = apart | {"spread": apart["spread"] | {"after": 0.01}}
    assert "more alike (standard deviation 0.010) than those of the others (0.200)" in everything(
        result | {"separation": alike}
    )
    assert "more alike" not in everything(result)


def test_the_heading_says_whose_request_and_who_answers_for_it() -> None:
    table = make_result() | {"request": {"case": "2026-117", "due": "2026-12-01"}}
    found = dict(heading(typed(table), make_certificate()))
    assert list(found) == ["case", "due", "model", "records", "date", "request", "signed by"]
    assert (found["case"], found["due"], found["model"]) == ("2026-117", "2026-12-01", "model.safetensors")
    assert (found["records"], found["date"], found["request"]) == ("12", "3 January 2026", "number 3 on this model")
    assert re.fullmatch("key [0-9a-f]{16}", found["signed by"])
    assert dict(heading(typed(make_result()), make_certificate(signed=False)))["signed by"] == "nobody"
    assert set(dict(heading(typed(make_result())))) == {"records", "date", "request"}


def test_plain_words_for_those_who_know_data_protection() -> None:
    table = make_result() | {"request": {"case": "2026-117", "due": None}}
    text = " ".join(plain(typed(table), NO_VERDICT, make_certificate()))
    assert text.startswith("On 3 January 2026 the model was asked to forget 12 records of its training data (case 2026")
    assert "95.0 % of the cases before and in 90.0 % after" in text
    for word in ("AUC", "posterior", "oracle", "logit", "FR", "gradient", "weights"):
        assert word not in text, word
    left = " ".join(plain(typed(not_memorised(make_result())), NO_VERDICT))
    assert "left as it was" in left
    assert "This page shows no record." in left
    strange = typed(make_result() | {"provenance": {"time": "yesterday"}})
    assert plain(strange, NO_VERDICT)[0].startswith("On an unknown day")


@pytest.mark.parametrize(
    ("word", "told"), [("forgotten", "like models"), ("not shown", "not been shown"), ("failed", "did not succeed")]
)
def test_plain_words_follow_the_verdict(word: Any, told: str) -> None:
    said = {each: " ".join(plain(typed(make_result()), Verdict(word=each, line=""))) for each in _WORDS}
    assert [each for each, text in said.items() if told in text] == [word]


def test_the_glossary_has_the_words_of_the_page() -> None:
    words = " ".join(name for name, _ in GLOSSARY)
    for word in ("FR", "CFR", "AUC", "oracle", "member", "retrained", "U-LiRA", "drift", "keyed hash", "floor"):
        assert word in words, word
