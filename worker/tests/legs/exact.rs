//! The same tokens, log-probabilities and counts whichever way a request goes.

use baton_decode_worker::DecodeWorker;
use baton_kv_transfer::TransportChoice;
use baton_model_file::fixtures::Random;
use baton_prefill_worker::PrefillWorker;
use baton_proto::domain::{Completion, FinishReason, Transport};
use baton_sampling::{SamplingParams, TokenLogprobs};

use crate::support::node::{Node, Wish};
use crate::support::prompt;
use crate::support::router::{Ask, DecodeLeg, Got, PrefillLeg, local, split};

async fn pair(wish: Wish) -> (Node, Node) {
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..wish.clone()
    })
    .await;
    let gate = crate::support::gate::Gate::open();
    let decode = Node::start::<DecodeWorker>(Wish {
        name: "d",
        gate,
        ..wish
    })
    .await;
    (prefill, decode)
}

fn random_ask(random: &mut Random, index: u64) -> Ask {
    let tokens = 1 + random.below(200);
    let max_tokens = 1 + random.below(20) as u32;
    let params = SamplingParams {
        temperature: [0.0, 1.0, 6.0][random.below(3)],
        top_p: [1.0, 0.9][random.below(2)],
        top_k: [0, 40][random.below(2)],
        seed: random.bits(),
        choices: [1, 1, 2, 4][random.below(4)],
        max_tokens,
        ignore_eos: random.below(2) == 0,
        stop_token_ids: (0..30).map(|_| random.below(512) as u32).collect(),
        logprobs: [None, Some(0), Some(3)][random.below(3)],
        prompt_logprobs: [None, None, Some(0), Some(4)][random.below(4)],
        repetition_penalty: [1.0, 1.3][random.below(2)],
        ..SamplingParams::default()
    };
    Ask {
        params,
        ..Ask::greedy(prompt(index, tokens), 1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn split_over_shm_equals_split_over_tcp_equals_local() {
    const SEED: u64 = 11;
    println!("seed {SEED}");
    let (shm_prefill, shm_decode) = pair(Wish::over(TransportChoice::Shm)).await;
    let (tcp_prefill, tcp_decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    let mut random = Random::new(SEED);
    for index in 0..24 {
        let ask = random_ask(&mut random, index);
        let expected = local(&alone, &ask).await.expect("local");
        let shm = split(&shm_prefill, &shm_decode, &ask)
            .await
            .expect("split over shm");
        let tcp = split(&tcp_prefill, &tcp_decode, &ask)
            .await
            .expect("split over tcp");
        let hit = local(&tcp_decode, &ask)
            .await
            .expect("local, with what was landed");
        for (way, got) in [("shm", &shm), ("tcp", &tcp), ("hit", &hit)] {
            assert_eq!(
                got.choices, expected.choices,
                "request {index} {way}: {ask:?}"
            );
            assert_eq!(got.prompt, expected.prompt, "request {index} {way}");
        }
        for (transport, got) in [(Transport::Shm, &shm), (Transport::Tcp, &tcp)] {
            let report = got.prefill.as_ref().expect("a report");
            if report.committed {
                assert_eq!(report.transport, Some(transport));
            }
        }
        for node in [&shm_prefill, &shm_decode, &tcp_prefill, &tcp_decode, &alone] {
            node.until_idle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_change_nothing() {
    const SEED: u64 = 12;
    println!("seed {SEED}");
    let (prefill, decode) = pair(Wish {
        pages: 400,
        ..Wish::over(TransportChoice::Shm)
    })
    .await;
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    let mut random = Random::new(SEED);
    let asks: Vec<Ask> = (0..12)
        .map(|index| random_ask(&mut random, 100 + index))
        .collect();
    let mut expected = Vec::new();
    for ask in &asks {
        expected.push(local(&alone, ask).await.expect("local").choices);
    }
    let all = asks.iter().map(|ask| split(&prefill, &decode, ask));
    let got = futures::future::join_all(all).await;
    for (index, (got, expected)) in got.into_iter().zip(expected).enumerate() {
        assert_eq!(
            got.expect("split").choices,
            expected,
            "request {index}: {:?}",
            asks[index]
        );
    }
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_leave_while_prefill_still_computes() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    // The last of five chunks waits until all that could leave has left.
    prefill.gate.close();
    let ask = Ask::greedy(prompt(5, 160), 4);
    let mut first = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    first.scheduled().await.unwrap();
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    let grant = second.granted().await.unwrap();
    let bytes = 128 * bytes_per_token(&prefill);
    first.grant(grant);
    prefill.gate.let_some(4);
    prefill.gate.until_arrived(5).await;
    crate::support::until("the bytes of four chunks", async || {
        decode.counter("kv_transfer_bytes_received").await >= bytes
    })
    .await;
    prefill.gate.let_all();
    let mut got = Got::default();
    first.finish(&mut got).await.unwrap();
    second.finish(&mut got).await.unwrap();
    let report = got.prefill.unwrap();
    assert_eq!(report.transfer_bytes, 160 * bytes_per_token(&prefill));
    assert!(report.bytes_before_last_step >= bytes, "{report:?}");
}

/// K and V of all layers, in bytes.
fn bytes_per_token(node: &Node) -> u64 {
    let fingerprint = &node.info().fingerprint;
    let values = 2 * fingerprint.layers * fingerprint.kv_heads * fingerprint.head_dim;
    // The options' default type is bf16.
    2 * u64::from(values)
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_13_every_length_and_chunk_gives_the_same_pages() {
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    let lengths = [1, 15, 16, 17, 20, 31, 32, 33];
    for chunk in [1, 7, 16, 17] {
        let wish = Wish {
            chunk,
            prefix_cache: false,
            ..Wish::over(TransportChoice::Tcp)
        };
        let (prefill, decode) = pair(wish).await;
        for tokens in lengths {
            let mut ask = Ask::greedy(prompt(tokens as u64, tokens), 6);
            ask.params.logprobs = Some(5);
            let expected = local(&alone, &ask).await.unwrap();
            let got = split(&prefill, &decode, &ask).await.unwrap();
            assert_eq!(
                got.choices, expected.choices,
                "{tokens} tokens in chunks of {chunk}"
            );
        }
        prefill.until_idle().await;
        decode.until_idle().await;
    }
}

/// Goes on after what the reference has given up to `cut`, and gives all of it.
async fn resumed(
    ask: &Ask,
    expected: &Got,
    cut: impl Fn(u32) -> usize,
    serve: impl AsyncFn(&Ask, Got) -> Got,
) -> Got {
    let mut before = Got::default();
    let mut completions = Vec::new();
    for (&choice, tokens) in &expected.choices {
        let so_far = tokens[..cut(choice).min(tokens.len())].to_vec();
        completions.push(Completion {
            token_ids: so_far.iter().map(|seen| seen.0).collect(),
            ended: so_far.len() == tokens.len(),
        });
        before.choices.insert(choice, so_far);
    }
    let ask = Ask {
        attempt: 3,
        completions,
        ..ask.clone()
    };
    serve(&ask, before).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_07_legs_go_on_after_what_was_generated_elsewhere() {
    const SEED: u64 = 907;
    println!("seed {SEED}");
    let mut random = Random::new(SEED);
    for transports in [TransportChoice::Tcp, TransportChoice::Shm] {
        let (prefill, decode) = pair(Wish {
            pages: 400,
            ..Wish::over(transports)
        })
        .await;
        let alone = Node::start::<DecodeWorker>(Wish {
            prefix_cache: false,
            ..Wish::default()
        })
        .await;
        for index in 0..12 {
            let mut ask = random_ask(&mut random, index);
            ask.params.max_tokens = ask.params.max_tokens.max(3);
            (ask.params.logprobs, ask.params.prompt_logprobs) = (Some(2), None);
            ask.params.presence_penalty = 0.5;
            ask.params.repetition_penalty = 1.3;
            let expected = local(&alone, &ask).await.expect("undisturbed");
            // One choice has all of its tokens, if there are several; the others lack some.
            let cut = |choice: u32| match (choice, ask.params.choices) {
                (0, 2..) => usize::MAX,
                (choice, _) => {
                    let tokens = expected.choices[&choice].len();
                    (1 + 2 * choice as usize).min(tokens - 1)
                }
            };
            let what = format!("request {index}: {ask:?}");
            let got = resumed(&ask, &expected, cut, async |ask, mut got| {
                let mut leg = DecodeLeg::open(&decode, ask, true).await.expect("open");
                leg.finish(&mut got).await.expect("resumed locally");
                got
            })
            .await;
            assert_eq!(got.choices, expected.choices, "local, {what}");
            let got = resumed(&ask, &expected, cut, async |ask, mut got| {
                let mut first = PrefillLeg::open(&prefill, ask, true).await.expect("open");
                first.scheduled().await.expect("scheduled");
                let mut second = DecodeLeg::open(&decode, ask, false).await.expect("open");
                first.grant(second.granted().await.expect("a grant"));
                first.finish(&mut got).await.expect("handed off");
                if got.prefill.as_ref().is_some_and(|report| report.committed) {
                    second.finish(&mut got).await.expect("resumed");
                }
                got
            })
            .await;
            assert_eq!(got.choices, expected.choices, "split, {what}");
        }
        prefill.until_idle().await;
        decode.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_18_counts_are_exact_and_one_token_needs_no_transfer() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    for max_tokens in [1, 2, 17] {
        for choices in [1, 2] {
            let mut ask = Ask::greedy(prompt(18, 40), max_tokens);
            ask.params.choices = choices;
            ask.params.temperature = 0.9;
            ask.params.logprobs = Some(2);
            let expected = local(&alone, &ask).await.unwrap();
            let got = split(&prefill, &decode, &ask).await.unwrap();
            assert_eq!(
                got.choices, expected.choices,
                "max_tokens {max_tokens}, n {choices}"
            );
            assert_eq!(got.choices.len(), choices as usize);
            for tokens in got.choices.values() {
                assert_eq!(tokens.len(), max_tokens as usize);
                assert_eq!(tokens.last().unwrap().2, Some(FinishReason::Length));
                assert!(tokens.iter().all(|seen| seen.1.is_some()));
            }
            assert_eq!(got.decode.is_some(), max_tokens > 1);
        }
    }
    assert_eq!(decode.counter("kv_transfer_opened").await, 4);
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_19_a_first_token_that_ends_revokes_the_grant() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Shm)).await;
    let mut ask = Ask::greedy(prompt(19, 50), 20);
    let first = local(&decode, &ask).await.unwrap().ids()[0][0];
    ask.params.stop_token_ids = vec![first];

    // What the local run left here must not spare the transfer.
    ask.salt = b"apart".to_vec();
    prefill.gate.close();
    let mut leg = PrefillLeg::open(&prefill, &ask, true).await.unwrap();
    leg.scheduled().await.unwrap();
    let mut second = DecodeLeg::open(&decode, &ask, false).await.unwrap();
    leg.grant(second.granted().await.unwrap());
    prefill.gate.let_some(1);
    crate::support::until("the first pages", async || {
        decode.counter("kv_transfer_bytes_received").await > 0
    })
    .await;
    prefill.gate.let_all();
    let mut got = Got::default();
    leg.finish(&mut got).await.unwrap();
    assert_eq!(got.choices[&0], [(first, None, Some(FinishReason::Stop))]);
    assert!(!got.prefill.as_ref().unwrap().committed);
    let status = second.finish(&mut got).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted);
    assert_eq!(crate::support::router::reason(&status), "revoked");
    prefill.until_idle().await;
    decode.until_idle().await;

    // Of two choices one ends: only the other goes on, and both ways agree.
    ask.params.choices = 2;
    ask.params.temperature = 8.0;
    ask.params.stop_token_ids.clear();
    let both = local(&decode, &ask).await.unwrap().ids();
    assert_ne!(
        both[0][0], both[1][0],
        "this seed gives two different first tokens"
    );
    ask.params.stop_token_ids = vec![both[0][0]];
    let expected = local(&decode, &ask).await.unwrap();
    let got = split(&prefill, &decode, &ask).await.unwrap();
    assert_eq!(got.choices, expected.choices);
    assert_eq!(got.choices[&0].len(), 1);
    prefill.until_idle().await;
    decode.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_07_a_full_prefix_hit_computes_the_last_token_again() {
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    let (prefill, decode) = pair(Wish::over(TransportChoice::Tcp)).await;
    let text = prompt(7, 48);
    for tokens in [32, 16, 17, 31, 33, 48] {
        let mut ask = Ask::greedy(text[..tokens].to_vec(), 5);
        ask.params.logprobs = Some(3);
        let expected = local(&alone, &ask).await.unwrap();
        split(&prefill, &decode, &ask).await.unwrap();
        let again = split(&prefill, &decode, &ask).await.unwrap();
        assert_eq!(again.choices, expected.choices, "{tokens} tokens");
        let cached = (tokens as u32 - 1) / 16 * 16;
        assert_eq!(
            again.scheduled.unwrap().cached_tokens,
            cached,
            "{tokens} tokens"
        );
        assert_eq!(
            again.decode.unwrap().cached_tokens,
            cached,
            "{tokens} tokens"
        );
        let here = local(&decode, &ask).await.unwrap();
        assert_eq!(here.choices, expected.choices, "{tokens} tokens");
        assert_eq!(
            here.decode.unwrap().cached_tokens,
            cached,
            "{tokens} tokens"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_08_log_probabilities_do_not_depend_on_prefix_hits() {
    let (prefill, decode) = pair(Wish::over(TransportChoice::Shm)).await;
    let mut ask = Ask::greedy(prompt(8, 117), 10);
    ask.params.logprobs = Some(20);
    let first = split(&prefill, &decode, &ask).await.unwrap();
    let second = split(&prefill, &decode, &ask).await.unwrap();
    let here = local(&decode, &ask).await.unwrap();
    assert_eq!(first.scheduled.unwrap().cached_tokens, 0);
    assert_eq!(second.scheduled.unwrap().cached_tokens, 112);
    assert_eq!(here.scheduled.unwrap().cached_tokens, 112);
    assert!(first.choices[&0].iter().all(|seen| seen.1.is_some()));
    assert_eq!(first.choices, second.choices);
    assert_eq!(first.choices, here.choices);
}

/// What the model thinks of each token of a prompt, one request per token: a bias makes it the chosen one,
/// and log-probabilities are those before any bias.
async fn one_by_one(alone: &Node, prompt: &[u32], count: u32) -> Vec<TokenLogprobs> {
    let mut entries = Vec::new();
    for position in 1..prompt.len() {
        let mut ask = Ask::greedy(prompt[..position].to_vec(), 1);
        ask.params.logit_bias = [(prompt[position], 100.0)].into();
        ask.params.logprobs = Some(count);
        let got = local(alone, &ask).await.expect("one token");
        let (token, logprobs, _) = got.choices[&0][0].clone();
        assert_eq!(token, prompt[position]);
        entries.push(logprobs.expect("as asked"));
    }
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_of_a_prompt_are_those_of_its_tokens_one_by_one() {
    let alone = Node::start::<DecodeWorker>(Wish {
        prefix_cache: false,
        ..Wish::default()
    })
    .await;
    let text = prompt(21, 150);
    let expected = one_by_one(&alone, &text, 5).await;
    for chunk in [1, 17, 64, 150] {
        let wish = Wish {
            chunk,
            ..Wish::over(TransportChoice::Tcp)
        };
        let (prefill, decode) = pair(wish).await;
        for (choices, max_tokens) in [(1, 6), (3, 6), (2, 1)] {
            let mut ask = Ask::greedy(text.clone(), max_tokens);
            ask.params.prompt_logprobs = Some(5);
            ask.params.choices = choices;
            let what = format!("chunks of {chunk}, {choices} choices of {max_tokens}");
            let got = split(&prefill, &decode, &ask).await.expect("split");
            assert_eq!(got.prompt, expected, "{what}");
            // Whatever is held here by now, it is computed again.
            assert_eq!(got.scheduled.expect("scheduled").cached_tokens, 0, "{what}");
            let here = local(&decode, &ask).await.expect("local");
            assert_eq!(here.prompt, expected, "{what}");
            assert_eq!(
                here.scheduled.expect("scheduled").cached_tokens,
                0,
                "{what}"
            );
            assert_eq!(got.choices, here.choices, "{what}");
        }
        // What they computed is there for others.
        let plain = Ask::greedy(text.clone(), 6);
        let hit = split(&prefill, &decode, &plain).await.expect("a hit");
        assert_eq!(hit.scheduled.expect("scheduled").cached_tokens, 144);
        assert!(hit.prompt.is_empty());
        prefill.until_idle().await;
        decode.until_idle().await;
    }
}
