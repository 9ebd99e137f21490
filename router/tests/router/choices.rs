//! Text: characters and stop strings across tokens and across the hand-off.

use baton_proto::domain::FinishReason;
use baton_proto::legs::{DecodeEvent, PrefillEvent};
use baton_proto::v1;

use crate::fake::{FakeWorker, Script, Setup, endless, says, token};
use crate::harness::{Answer, Harness, MODEL, by_ids, config, ids, long, prompt_of, with};

/// The same script split and local; both must say the same.
struct Both {
    split: (Harness, FakeWorker, FakeWorker),
    local: (Harness, FakeWorker),
}

impl Both {
    async fn start(script: Script) -> Self {
        let split = Harness::pair(script.clone()).await;
        let local = Harness::start(config()).await;
        let worker = local.add(Setup::decode("decode-0", script)).await;
        Self {
            split,
            local: (local, worker),
        }
    }

    async fn ask(&self, change: impl Fn(&mut v1::SamplingOptions)) -> Answer {
        let request = || with(long(100), &change);
        let split = self.split.0.generate(request()).await.unwrap().whole();
        let local = self.local.0.generate(request()).await.unwrap().whole();
        for (a, b) in split.choices.iter().zip(&local.choices) {
            assert_eq!((&a.ids, a.text()), (&b.ids, b.text()));
            assert_eq!(a.finished, b.finished);
        }
        self.split.2.until_idle().await;
        self.local.1.until_idle().await;
        split
    }
}

fn finish(answer: &Answer) -> (v1::FinishReason, String) {
    let finished = answer.only().finished.clone().unwrap();
    (finished.finish_reason(), finished.stop)
}

#[tokio::test]
async fn tok_01_characters_across_tokens_come_out_whole() {
    let text = "ok 🙂 日本";
    let both = Both::start(says(&ids(text))).await;
    let answer = both.ask(|_| {}).await;
    assert_eq!(answer.only().text(), text);
    assert!(
        answer
            .only()
            .texts
            .iter()
            .all(|delta| !delta.contains('\u{FFFD}'))
    );
    let expected = MODEL.text.decode(&ids(text), true).unwrap();
    assert_eq!(answer.only().text(), expected);
}

#[tokio::test]
async fn tok_02_a_cut_in_a_character_is_a_normal_end() {
    let all = ids("ok 🙂");
    // One token less than the whole: the smiley lacks its end.
    let cut = all.len() - 1;
    let both = Both::start(says(&all)).await;
    let answer = both
        .ask(|sampling| sampling.max_tokens = Some(cut as u32))
        .await;
    assert_eq!(finish(&answer).0, v1::FinishReason::Length);
    assert_eq!(answer.usage().completion_tokens as usize, cut);
    assert_eq!(
        answer.only().text(),
        MODEL.text.decode(&all[..cut], true).unwrap()
    );
}

#[tokio::test]
async fn smp_15_text_ends_before_the_earliest_stop_string() {
    let cases: [(&str, &[&str], &str, &str); 8] = [
        (
            "The quick brown fox",
            &["own fox"],
            "The quick br",
            "own fox",
        ),
        ("The quick brown fox", &["ck br"], "The qui", "ck br"),
        ("The quick brown fox", &["The"], "", "The"),
        ("The quick brown fox", &["x"], "The quick brown fo", "x"),
        ("The quick brown fox", &[" "], "The", " "),
        ("xxabcd", &["ab", "abc"], "xx", "ab"),
        ("in 日本 now", &["日本"], "in ", "日本"),
        (
            "The quick brown fox",
            &["cat", "brown"],
            "The quick ",
            "brown",
        ),
    ];
    for (text, stop, shown, matched) in cases {
        let both = Both::start(says(&ids(text))).await;
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        let answer = both.ask(|sampling| sampling.stop = stop.clone()).await;
        assert_eq!(answer.only().text(), shown, "{text} {stop:?}");
        assert_eq!(
            finish(&answer),
            (v1::FinishReason::Stop, matched.to_owned())
        );
        assert_eq!(
            answer.usage().completion_tokens as usize,
            answer.only().ids.len()
        );
    }
}

#[tokio::test]
async fn smp_16_only_what_could_begin_a_stop_string_is_held() {
    let text = "a quick brown fox jumps over it";
    let both = Both::start(says(&ids(text))).await;
    // Its first character never comes: nothing is held.
    let answer = both
        .ask(|sampling| sampling.stop = vec!["Z".repeat(200)])
        .await;
    let generated = ids(text).len();
    assert!(
        answer.only().texts[..generated]
            .iter()
            .all(|delta| !delta.is_empty())
    );
    // A false start is held, then shown.
    let answer = both
        .ask(|sampling| sampling.stop = vec!["over itself".into()])
        .await;
    assert_eq!(answer.only().text(), text);
    assert_eq!(finish(&answer), (v1::FinishReason::Stop, String::new()));
}

#[tokio::test]
async fn xfr_19_an_end_at_the_first_token_transfers_nothing() {
    // End-of-sequence, or a stop token id: both are the worker's to see.
    for id in [MODEL.served_eos(), 77] {
        let script: Script = std::sync::Arc::new(move |_, _| (id, Some(FinishReason::Stop)));
        let (harness, prefill, decode) = Harness::pair(script).await;
        let request = with(long(50), |sampling| sampling.stop_token_ids = vec![77]);
        let answer = harness.generate(request).await.unwrap().whole();
        assert_eq!(
            (answer.only().text(), answer.only().ids.len()),
            (String::new(), 1)
        );
        assert_eq!(finish(&answer).0, v1::FinishReason::Stop);
        let receipt = answer.receipt();
        assert_eq!(
            (receipt.transfer_bytes, receipt.transport.as_str()),
            (0, "")
        );
        prefill.until_idle().await;
        decode.until_idle().await;
    }
}

#[tokio::test]
async fn xfr_19_the_first_token_counts_for_stop_strings() {
    let all = ids("xy");
    assert_eq!(
        all.len(),
        2,
        "two tokens, so that the border lies between them"
    );
    let both = Both::start(says(&all)).await;
    // The first token is the stop string.
    let answer = both.ask(|sampling| sampling.stop = vec!["x".into()]).await;
    assert_eq!(
        (answer.only().text(), answer.only().ids.len()),
        (String::new(), 1)
    );
    assert_eq!(finish(&answer), (v1::FinishReason::Stop, "x".into()));
    // It is the first half; the second comes from the decode worker.
    let answer = both.ask(|sampling| sampling.stop = vec!["xy".into()]).await;
    assert_eq!(
        (answer.only().text(), answer.only().ids.len()),
        (String::new(), 2)
    );
    assert_eq!(finish(&answer), (v1::FinishReason::Stop, "xy".into()));
    // It is half a character.
    let smiley = ids("🙂");
    assert!(smiley.len() > 1);
    let both = Both::start(says(&smiley)).await;
    assert_eq!(both.ask(|_| {}).await.only().text(), "🙂");
}

#[tokio::test]
async fn xfr_19_a_stop_string_at_the_first_token_commits_no_transfer() {
    // The first token comes while pages are under way, or while the grant is still awaited.
    for granted in [true, false] {
        let script = says(&ids("xy"));
        let harness = Harness::start(config()).await;
        let decode = Setup::decode("decode-0", script.clone());
        let decode = if granted {
            decode
        } else {
            decode.plays_decode(|_| std::future::pending())
        };
        let decode = harness.add(decode).await;
        let prefill = Setup::prefill("prefill-0", script.clone()).plays(move |mut leg| {
            let script = script.clone();
            async move {
                leg.scheduled().await;
                if granted {
                    leg.grant().await;
                }
                for token in leg.first_tokens(&script) {
                    leg.send(PrefillEvent::FirstToken(token)).await;
                }
                // It would commit in a moment.
                std::future::pending().await
            }
        });
        let prefill = harness.add(prefill).await;
        let request = with(long(50), |sampling| {
            sampling.n = Some(2);
            sampling.stop = vec!["x".into()];
        });
        let answer = harness.generate(request).await.unwrap().whole();
        for choice in &answer.choices {
            assert_eq!((choice.text().as_str(), choice.ids.len()), ("", 1));
            let finished = choice.finished.as_ref().unwrap();
            assert_eq!(finished.finish_reason(), v1::FinishReason::Stop);
            assert_eq!(finished.stop, "x");
        }
        // Both legs were dropped: the grant ends with the decode leg, uncommitted.
        prefill.until_idle().await;
        decode.until_idle().await;
        assert_eq!(prefill.cancelled(), 1);
        assert_eq!(decode.cancelled(), decode.started());
        let receipt = answer.receipt();
        assert_eq!(
            (receipt.transfer_bytes, receipt.transport.as_str()),
            (0, "")
        );
        harness.until_counter("requests_ok", 1).await;
        assert_eq!(harness.counter("worker_failures").await, 0);
    }
}

#[tokio::test]
async fn a_stop_string_cancels_its_choice_at_the_worker() {
    // Choice 0 comes to the stop string, choice 1 goes on.
    let script: Script = std::sync::Arc::new(|choice, position| {
        let text = ids(if choice == 0 { "abcdefgh" } else { "ijklmnop" });
        (text[position as usize % text.len()], None)
    });
    for request in [long(12), by_ids(prompt_of(5), 12)] {
        let (harness, _prefill, decode) = Harness::pair(script.clone()).await;
        let request = with(request, |sampling| {
            sampling.n = Some(2);
            sampling.stop = vec!["cd".into()];
        });
        let answer = harness.generate(request).await.unwrap().whole();
        assert_eq!(answer.choices[0].text(), "ab");
        assert_eq!(answer.choices[1].ids.len(), 12);
        let ended = answer.choices[0].finished.as_ref().unwrap();
        assert_eq!(
            (ended.finish_reason(), ended.stop.as_str()),
            (v1::FinishReason::Stop, "cd")
        );
        assert_eq!(
            answer.usage().completion_tokens as usize,
            answer.choices[0].ids.len() + 12
        );
        decode.until_idle().await;
        // The worker heard of it and reported as usual.
        assert_eq!(decode.cancelled(), 0);
        assert_eq!(answer.receipt().landing_us, 40);
    }
}

#[tokio::test]
async fn a_stop_string_at_the_first_token_is_told_when_the_pages_have_landed() {
    let harness = Harness::start(config()).await;
    let script: Script = std::sync::Arc::new(|choice, position| {
        if choice == 0 {
            (ids("x")[0], None)
        } else {
            endless()(choice, position)
        }
    });
    let (prefill, _) = crate::fake::prefill_and_decode(script.clone());
    let _prefill = harness.add(prefill).await;
    let decode = Setup::decode("decode-0", script.clone()).plays_decode(move |mut leg| {
        let script = script.clone();
        async move {
            let first = leg.grants().await.await.unwrap();
            leg.landed(first).await;
            assert_eq!(leg.cancel_choice().await, 0);
            for position in 1..6 {
                let token = token(&script, &leg.spec, 1, position);
                leg.send(DecodeEvent::Token(token)).await;
            }
            leg.done().await;
            Ok(())
        }
    });
    let _decode = harness.add(decode).await;
    let request = with(long(6), |sampling| {
        sampling.n = Some(2);
        sampling.stop = vec!["x".into()];
    });
    let answer = harness.generate(request).await.unwrap().whole();
    assert_eq!(
        (answer.choices[0].ids.len(), answer.choices[1].ids.len()),
        (1, 6)
    );
}

#[tokio::test]
async fn logprobs_carry_texts_and_bytes() {
    let smiley = ids("🙂");
    let both = Both::start(says(&smiley)).await;
    let answer = both.ask(|sampling| sampling.logprobs = Some(2)).await;
    let choice = answer.only();
    assert_eq!(choice.logprobs.len(), choice.ids.len());
    for (id, logprobs) in choice.ids.iter().zip(&choice.logprobs) {
        assert!(logprobs.chosen <= 0.0);
        assert_eq!(logprobs.top.len(), 2);
        assert_eq!(logprobs.top[0].token_id, *id);
        assert_eq!(
            logprobs.top[0].text_bytes,
            MODEL.text.token_bytes(*id).unwrap()
        );
    }
    let bytes: Vec<u8> = choice.logprobs[..smiley.len()]
        .iter()
        .flat_map(|l| l.top[0].text_bytes.clone())
        .collect();
    assert_eq!(bytes, "🙂".as_bytes());
}
