"""Tests of the controller with simulated times: it uses drafts that pay, and loses little."""

import numpy as np
import pytest

from npurt.llm.spec.controller import (
    AGAIN,
    ALLOWANCE,
    BELIEF,
    PART,
    PRIOR_ROW,
    USUAL,
    Controller,
    Thresholds,
)

SHARE = 0.43  # time of a step of the 0.5B, in steps of the 1.5B: bench/RESULTS.md, decode
PROMPT = 0.2  # time of a prompt token of the 1.5B, in steps: prefill
READ = 0.34 * PROMPT  # time of a prompt token of the 0.5B


def drafted(controller, maximum, certainty):
    """Return how many tokens are drafted if each has that probability."""
    count, sure = 0, 1.0
    while count < maximum and (count == 0 or sure >= controller.thresholds.draft):
        count += 1
        sure *= certainty
    return count


def begun(tokens, token_seconds=0.0, *, maximum=4, sure=None):
    """Return a controller of a draft that costs 0.3, after four plain steps of a text of *tokens*.

    A step took 1 second, a prompt token *token_seconds*, and a draft token takes 0.3.  *sure* is
    the probability that the model gave to its tokens.
    """
    controller = Controller(maximum, share=0.3)
    controller.begin(tokens, token_seconds)
    for _ in range(4):
        controller.observe(0, 0, 0.0, 1.0)
        if sure is not None:
            controller.believe(sure)
    return controller


def drive(
    controller,
    accepts,
    *,
    row=0.1,
    draft=0.0,
    tokens=3000,
    noise=0.0,
    seed=0,
    cold=1.0,
    behind=0,
    sure=None,
    claims=None,
):
    """Decode *tokens*; return plain time over the time it took.  A plain step takes 1.

    The first draft, and the first pass of each size, take *cold* times as long.  The measured time
    of a pass has a relative error of *noise*.  The draft model has to evaluate *behind* prompt
    tokens first; the prompt then counts in both times.  *sure* is the probability that the model
    gives to its tokens.  If *draft* is not 0, the drafter reports *claims* as the probability of
    its tokens, by default the true one; otherwise it reports 1.
    """
    rng = np.random.default_rng(seed)
    controller.begin(tokens, PROMPT)
    prompt = PROMPT * behind
    done, spent, seen = 0, prompt, {0}
    while done < tokens:
        if sure is not None and controller.curious:
            controller.believe(sure)
        certainty = (accepts(done) if claims is None else claims) if draft else 1.0
        n = drafted(controller, min(controller.choose(behind), tokens - done - 1), certainty)
        right = next((i for i in range(n) if rng.random() >= accepts(done)), n)
        verify = (1 + row * n) * (1 if n in seen else cold)
        drafting = draft * n * (cold if len(seen) == 1 else 1)
        read = READ * behind if n else 0.0
        measured = verify * (1 + noise * rng.standard_normal())
        controller.observe(
            n, right, drafting, measured, behind=behind if n else 0, read_seconds=read
        )
        seen.add(n)
        behind = 0 if n or not behind else behind + 1
        done += right + 1
        spent += read + drafting + verify
    return (prompt + done) / spent


def drive_unsure(controller, sure, *, row=0.1, draft=0.3, tokens=3000, seed=0):
    """Run `drive` with a draft that is right but stops before an uncertain token."""
    rng = np.random.default_rng(seed)
    done, spent = 0, 0.0
    while done < tokens:
        wanted = controller.choose()
        n = next((i for i in range(wanted) if rng.random() >= sure), wanted)
        drawn = n + (n < wanted)
        seconds = draft * drawn
        controller.observe(n, n, seconds, 1 + row * n, drawn=drawn)
        done += n + 1
        spent += seconds + 1 + row * n
    return done / spent


@pytest.mark.parametrize("sure", [0.0, 0.1, 0.25])
def test_nothing_is_lost_to_a_draft_that_gives_up(sure):
    assert drive_unsure(Controller(8), sure) >= 0.97


def test_a_draft_that_gives_up_now_and_then_pays_still():
    assert drive_unsure(Controller(8), 0.9) >= 0.9 * drive_unsure(Controller(4, fixed=True), 0.9)


def test_a_lookup_that_finds_nothing_goes_on_looking():
    """A lookup costs nothing, so it is still tried after 500 tokens without a draft."""
    controller = Controller(8)
    for _ in range(500):
        controller.choose()
        controller.observe(0, 0, 1e-5, 1.0, drawn=0)

    assert controller.choose() > 0


def test_a_block_costs_the_same_however_long():
    """A shorter block would save no time, so its length stays 8 although few tokens are right."""
    controller = Controller(8, at_once=True)
    for _ in range(3):
        controller.observe(0, 0, 0.0, 1.0)
    for _ in range(40):
        controller.observe(8, 1, 0.8, 1.0)

    assert controller.choose() == 8


@pytest.mark.parametrize("row", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("draft", [0.0, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("accepts", [0.0, 0.05, 0.3])
def test_nothing_is_lost_where_drafting_does_not_pay(row, draft, noise, accepts):
    if row + draft < accepts:
        return  # drafting pays: see the next test

    assert drive(Controller(8), lambda done: accepts, row=row, draft=draft, noise=noise) >= 0.97


@pytest.mark.parametrize(
    ("accepts", "row", "draft"), [(0.9, 0.1, 0.0), (0.8, 0.1, 0.3), (0.95, 0.3, 0.1)]
)
def test_what_pays_is_found(accepts, row, draft):
    """The speed is at least 0.9 of that with the best fixed number of draft tokens."""
    best = max(
        drive(Controller(n, fixed=True), lambda done: accepts, row=row, draft=draft)
        for n in range(1, 9)
    )

    assert drive(Controller(8), lambda done: accepts, row=row, draft=draft) >= 0.9 * best


@pytest.mark.parametrize("claims", [0.8, 0.99])
@pytest.mark.parametrize("tokens", [128, 1000])
def test_little_is_lost_to_a_draft_that_is_sure_and_wrong(tokens, claims):
    pays = {"row": 0.06, "draft": 0.3, "tokens": tokens, "claims": claims}

    rates = [drive(Controller(8), lambda _: 0.2, seed=seed, **pays) for seed in range(10)]

    assert np.mean(rates) >= 0.97


def test_what_was_won_may_not_be_lost_again():
    """After the time of the largest gain, at most twice the allowance is lost."""
    rng = np.random.default_rng(0)
    controller = Controller(8)
    controller.begin(2000)
    done, spent, best = 0, 0.0, 0.0
    while done < 2000:
        n = drafted(controller, controller.choose(), 0.95)
        right = n if done < 300 else int(n * rng.random() / 3)
        controller.observe(n, right, 0.3 * n, 1 + 0.06 * n)
        done += right + 1
        spent += 1 + 0.36 * n
        best = max(best, done - spent)

    assert best > 100
    assert done - spent >= best - 2 * ALLOWANCE * 2000 - 1


def test_one_wrong_draft_is_not_the_last():
    """It may cost half of what may be lost in the text, and again half of what is left then."""
    controller = begun(64, maximum=8)
    for _ in range(6):
        controller.observe(1, 1, 0.3, 1.1)

    for _ in range(2):
        n = controller.choose()
        assert n > 1
        controller.observe(n, 0, 0.3 * n, 1 + 0.1 * n)


def test_what_did_not_pay_is_believed_after_a_few_good_passes():
    """However long it has not: a draft token saves a step and costs 0.4."""
    controller = begun(10000, maximum=8)
    for _ in range(20):
        controller.observe(1, 0, 0.3, 1.1)
    assert controller.choose() <= 1

    for _ in range(BELIEF):
        controller.observe(1, 1, 0.3, 1.1)

    assert controller.choose() > 1


def test_a_draft_token_is_worth_what_it_saves():
    """A right draft token saves a plain step; of those that follow right ones, 0.7 are right."""
    controller = Controller(4)
    for _ in range(3):
        controller.observe(0, 0, 0.0, 2.0)
    for n in (1, 1, 4, 4):
        controller.observe(n, n, 0.5 * n, 2 + 0.2 * n)

    assert controller.thresholds.verify == pytest.approx(0.1)
    assert controller.thresholds.draft == pytest.approx((0.25 + 0.1) / 0.7)
    assert Controller(4, fixed=True).thresholds == Thresholds(draft=0, verify=0)


def test_a_block_that_is_made_is_checked_as_far_as_its_rows_pay():
    """The block already has its next draft token, so only the row of the check costs time."""
    controller = Controller(4, at_once=True)
    for _ in range(3):
        controller.observe(0, 0, 0.0, 2.0)
    for n in (1, 1, 4, 4):
        controller.observe(n, n, 0.5, 2 + 0.2 * n)

    assert controller.thresholds.verify == pytest.approx(0.1)
    assert controller.thresholds.draft == pytest.approx(0.1 / 0.7)


@pytest.mark.parametrize("tokens", [128, 512])
def test_a_slow_start_does_not_put_it_off(tokens):
    """First runs are slow, because memory is mapped and programs are built."""
    pays = {"row": 0.06, "draft": 0.35, "tokens": tokens}

    rates = [drive(Controller(4), lambda _: 0.95, cold=2.0, seed=s, **pays) for s in range(10)]

    assert np.mean(rates) >= 1.4


@pytest.mark.parametrize("tokens", [32, 64, 128, 512])
@pytest.mark.parametrize(("row", "noise", "cold"), [(0.06, 0.0, 1), (0.15, 0.05, 2)])
@pytest.mark.parametrize("accepts", [0.0, 0.3, 0.45])
def test_little_is_lost_in_a_text_of_any_length(tokens, row, noise, cold, accepts):
    """The draft model is a third as large as its target, and pays if half of its tokens are right.

    In the first generation of a process, trials may cost as much as in one of USUAL tokens.
    """
    part = max(1, USUAL / tokens)
    times = {"row": row, "draft": 0.35, "noise": noise, "cold": cold, "tokens": tokens}

    rates = [
        drive(Controller(8, share=0.35), lambda done: accepts, seed=seed, **times)
        for seed in range(20)
    ]
    assert min(rates) >= 1 - (0.03 if accepts == 0 else 0.04) * part
    assert np.mean(rates) >= 1 - 0.03 * part


@pytest.mark.parametrize("tokens", [16, 32, 64])
def test_in_a_short_text_too_something_is_tried(tokens):
    controller = Controller(4, share=0.35)

    assert drive(controller, lambda done: 1.0, row=0.1, draft=0.35, tokens=tokens) > 1
    assert controller.text.drafted > 0


def test_a_text_that_changes_its_mind_is_followed():
    """The drafts are right for 1000 tokens, then wrong for 1000, then right again."""
    copying = [True, False, True]

    rate = drive(Controller(8), lambda done: 0.95 if copying[min(done // 1000, 2)] else 0.0)

    assert rate >= 1.5


def test_what_is_lost_to_trying_stays_in_its_allowance():
    controller = Controller(8)

    drive(controller, lambda done: 0.0, row=0.3, draft=0.3, tokens=5000)

    said = controller.speculation
    assert said.seconds - said.plain_seconds <= (AGAIN + 0.005) * said.seconds
    assert said.drafted > 0


# --- Reading --------------------------------------------------------------------------------------


def read_and_drive(prompt, tokens, sure, accepts, *, seed=0):
    """Run `drive` with the times of 1.5B and 0.5B; return the ratio of times and draft tokens."""
    controller = Controller(8, share=SHARE)
    rate = drive(
        controller,
        lambda done: accepts,
        row=0.06,
        draft=SHARE,
        tokens=tokens,
        behind=prompt,
        sure=sure,
        seed=seed,
    )
    return rate, controller.text.drafted


@pytest.mark.parametrize("tokens", [64, 128, 512])
@pytest.mark.parametrize("prompt", [16, 41, 100, 512])
@pytest.mark.parametrize("sure", [0.5, 0.67])
def test_what_a_draft_model_reads_of_a_prompt_costs_little_where_it_is_of_no_use(
    prompt, tokens, sure
):
    """The rate of right draft tokens is the probability of the model's tokens: 0.67 for prose."""
    rates = [read_and_drive(prompt, tokens, sure, sure, seed=seed)[0] for seed in range(10)]

    part = max(1, USUAL / tokens)
    assert np.mean(rates) >= 1 - 0.03 * part
    assert min(rates) >= 1 - 0.04 * part


@pytest.mark.parametrize(("prompt", "tokens"), [(512, 128), (4000, 1000)])
def test_a_prompt_too_long_for_its_text_is_never_read(prompt, tokens):
    assert read_and_drive(prompt, tokens, 0.95, 1.0) == (1.0, 0)


@pytest.mark.parametrize(("prompt", "tokens"), [(41, 128), (100, 512), (512, 2000)])
def test_a_prompt_is_read_where_what_can_be_won_pays_for_it(prompt, tokens):
    rates = [read_and_drive(prompt, tokens, 0.95, 0.95, seed=seed)[0] for seed in range(10)]

    assert np.mean(rates) >= 1.3


@pytest.mark.parametrize(("part", "drafted"), [(0.9, 1), (1.1, 0)])
def test_what_can_be_won_is_what_the_best_number_of_draft_tokens_wins(part, drafted):
    """If 0.95 of draft tokens are right, one saves a fifth of the time, and eight three tenths."""
    tokens = [sum(0.95**i for i in range(n + 1)) for n in range(1, 9)]
    steps = [1 + n * (SHARE + PRIOR_ROW) for n in range(1, 9)]
    win = 1000 * max(1 - s / t for s, t in zip(steps, tokens, strict=True))
    controller = Controller(8, share=SHARE)
    controller.begin(1004, 1.0)
    for _ in range(4):
        controller.observe(0, 0, 0.0, 1.0)
    for _ in range(1000):
        controller.believe(0.95)

    assert controller.choose(behind=int(part * PART * win / SHARE)) == drafted


def test_a_draft_that_is_wrong_where_the_model_is_sure_costs_its_reading_once():
    """At most PART of the expected gain is lost; here, that gain is a quarter of the time."""
    for prompt in (41, 256, 512):
        for tokens in (128, 512, 1000):
            assert read_and_drive(prompt, tokens, 0.9, 0.0)[0] >= 1 - PART * 0.25


def test_reading_that_nothing_pays_for_is_taken_from_the_allowance():
    """The allowance is ten steps of 400 tokens, and the first wrong draft uses six of them."""
    controller = begun(400, 0.2, sure=0.0)

    assert controller.choose(behind=100) == 1
    controller.observe(1, 0, 0.3, 1.1, behind=100, read_seconds=6.0)
    assert controller.choose(behind=100) == 0
    assert controller.choose(behind=20) == 1


def test_losses_are_those_of_one_text():
    controller = begun(128, 1.0, sure=0.0)
    controller.observe(1, 0, 0.3, 1.1, behind=10, read_seconds=3.0)
    assert controller.choose() == 0

    controller.begin(128)

    assert controller.choose() == 1


def test_how_sure_the_model_is_is_asked_until_a_draft_token_was_judged():
    controller = Controller(8)
    for _ in range(3):
        controller.observe(0, 0, 0.0, 1.0)
    asked = []
    for _ in range(8):
        asked.append(controller.curious)
        controller.observe(0, 0, 0.0, 1.0)
    controller.observe(1, 0, 0.3, 1.1)

    assert sorted(asked) == [False] * 4 + [True] * 4
    assert not any([controller.curious, controller.observe(0, 0, 0.0, 1.0), controller.curious])


# --- The account ----------------------------------------------------------------------------------


def test_each_text_has_its_account():
    controller = Controller(4)
    first = controller.begin(8)
    for _ in range(3):
        controller.observe(0, 0, 0.0, 2.0)
    second = controller.begin(8)
    controller.observe(3, 2, 0.5, 2.5)

    assert (first.passes, first.drafted, first.tokens) == (3, 0, 3)
    assert first.figures()["speedup"] == 1.0
    assert second.figures() == {
        "drafted": 3,
        "accepted": 2,
        "passes": 1,
        "mean_accepted": 3.0,
        "speedup": 2.0,  # three tokens in 3 seconds, which plainly take 2 seconds each
    }
    assert controller.speculation.passes == 4


def test_what_is_not_known_is_none():
    """A figure is None without any pass, and the speedup also without a plain pass."""
    controller = Controller(4, fixed=True)
    nothing = controller.begin(8).figures()
    controller.observe(4, 4, 0.1, 1.0)

    assert nothing == {
        "drafted": 0,
        "accepted": 0,
        "passes": 0,
        "mean_accepted": None,
        "speedup": None,
    }
    assert controller.text.figures()["speedup"] is None
    assert controller.text.line() == "speculation: 4 drafted, 4 accepted, 5.00 tokens a pass"


def test_reading_is_in_the_account():
    controller = Controller(4)
    for _ in range(3):
        controller.observe(0, 0, 0.0, 1.0)
    said = controller.begin(100)
    controller.observe(1, 1, 0.25, 1.0, behind=40, read_seconds=0.75)

    assert said.speedup == 1.0
