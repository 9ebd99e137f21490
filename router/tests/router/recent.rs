//! What operators see of requests that run and that have ended.

use baton_proto::v1;
use serde_json::json;
use tonic::Code;

use crate::fake::endless;
use crate::harness::{Harness, MODEL, by_ids, first_token, long, prompt_of, soon};
use crate::web::{TEXT, Web};

async fn requests(harness: &Harness) -> Vec<v1::RequestRecord> {
    let request = v1::ListRequestsRequest { limit: 0 };
    let mut admin = harness.admin();
    let listed = soon("the list", admin.list_requests(request))
        .await
        .unwrap();
    listed.into_inner().requests
}

async fn find(harness: &Harness, name: &str) -> v1::RequestRecord {
    let request = v1::GetRequestRequest {
        request: name.to_owned(),
    };
    let mut admin = harness.admin();
    let found = soon("the request", admin.get_request(request))
        .await
        .unwrap();
    found.into_inner().request.unwrap()
}

#[tokio::test]
async fn a_split_request_is_remembered_phase_by_phase() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let mut request = long(4);
    request.request_label = "mine".into();
    let answer = harness.generate(request).await.unwrap().whole();
    harness.until_idle().await;
    let listed = requests(&harness).await;
    assert_eq!(listed.len(), 1);
    let record = find(&harness, "mine").await;
    assert_eq!(record.request_id, answer.receipt().request_id);
    assert_eq!(record.request_id, listed[0].request_id);
    assert!(listed[0].receipt.is_none(), "only of one request");
    assert_eq!(
        (record.api.as_str(), record.phase.as_str()),
        ("grpc", "ended")
    );
    assert_eq!(record.outcome, "ok");
    assert_eq!((record.prompt_tokens, record.completion_tokens), (100, 4));
    let [attempt] = &record.attempts[..] else {
        panic!("{:?}", record.attempts);
    };
    let placement = attempt.placement.as_ref().unwrap();
    assert_eq!(placement.prefill_worker, "prefill-0");
    assert_eq!(placement.decode_worker, "decode-0");
    let times = [
        record.admitted_us,
        Some(attempt.begun_us),
        attempt.scheduled_us,
        attempt.granted_us,
        attempt.landed_us,
        record.finished_us,
    ];
    let times: Vec<u64> = times.map(|time| time.expect("it has come")).into();
    assert!(times.is_sorted(), "{times:?}");
    let first = record.first_token_us.unwrap();
    assert!(attempt.scheduled_us.unwrap() <= first && first <= record.finished_us.unwrap());
    let mut receipt = answer.receipt().clone();
    let told = record.receipt.unwrap();
    receipt.attempts.clone_from(&told.attempts);
    assert_eq!(told, receipt);
    assert_eq!(told.attempts.len(), 1);
}

#[tokio::test]
async fn what_runs_is_listed_and_what_is_cancelled_says_so() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let mut client = harness.client();
    let mut stream = soon("a stream", client.generate(long(4000)))
        .await
        .unwrap()
        .into_inner();
    first_token(&mut stream).await;
    let listed = requests(&harness).await;
    assert_eq!(listed.len(), 1);
    assert!(listed[0].outcome.is_empty() && listed[0].finished_us.is_none());
    assert!(
        ["transfer", "decode"].contains(&listed[0].phase.as_str()),
        "{listed:?}"
    );
    assert!(listed[0].completion_tokens > 0);
    drop(stream);
    harness.until_idle().await;
    soon("the end", async {
        while requests(&harness).await[0].outcome != "cancelled" {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_refused_request_says_why_and_an_unknown_one_is_not_found() {
    let harness = Harness::start(crate::harness::config()).await;
    let refused = harness.generate(by_ids(prompt_of(8), 4)).await;
    assert!(crate::harness::status_of(refused).code() == Code::Unavailable);
    harness.until_idle().await;
    let listed = requests(&harness).await;
    assert_eq!(listed[0].outcome, "unavailable");
    assert!(listed[0].error.contains("decode worker"), "{listed:?}");
    let request = v1::GetRequestRequest {
        request: "nobody\n".into(),
    };
    let unknown = harness.admin().get_request(request).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("\"nobody\\n\""), "{unknown:?}");
}

#[tokio::test]
async fn prompts_of_a_refused_list_are_refused_with_it() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let context = MODEL.file.config().context_length as usize;
    let prompts = [prompt_of(8), prompt_of(9), prompt_of(context + 1)];
    let body = json!({"prompt": prompts, "max_tokens": 2});
    let error = Web::json(&harness, TEXT, &body).await.error(400).await;
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    harness.until_idle().await;
    let listed = requests(&harness).await;
    assert_eq!(listed.len(), 2);
    for record in listed {
        assert_eq!(record.outcome, "invalid", "{record:?}");
        assert!(record.error.contains("prompt in tokens"), "{record:?}");
    }
    assert_eq!(harness.counter("requests_cancelled").await, 0);
}

#[tokio::test]
async fn history_counts_every_token_once() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    for _ in 0..3 {
        harness.generate(long(5)).await.unwrap().whole();
    }
    harness
        .generate(by_ids(prompt_of(8), 3))
        .await
        .unwrap()
        .whole();
    harness.until_idle().await;
    let total = |response: &v1::GetHistoryResponse, of: fn(&v1::HistorySecond) -> u64| {
        response.seconds.iter().map(of).sum::<u64>()
    };
    let sum = |bins: &Option<v1::LatencyBins>| {
        let bins = bins.as_ref().unwrap();
        bins.counts
            .iter()
            .map(|&count| u64::from(count))
            .sum::<u64>()
    };
    let history = soon("all is counted", async {
        loop {
            let request = v1::GetHistoryRequest { seconds: 0 };
            let history = harness
                .admin()
                .get_history(request)
                .await
                .unwrap()
                .into_inner();
            if total(&history, |second| u64::from(second.ended_ok)) == 4 {
                return history;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(total(&history, |second| second.completion_tokens), 18);
    assert_eq!(total(&history, |second| second.prompt_tokens), 308);
    assert_eq!(total(&history, |second| u64::from(second.received)), 4);
    let ttft: u64 = history.seconds.iter().map(|second| sum(&second.ttft)).sum();
    let itl: u64 = history.seconds.iter().map(|second| sum(&second.itl)).sum();
    assert_eq!((ttft, itl), (4, 14));
    assert!(history.bin_ends_us.is_sorted());
    let seconds: Vec<u64> = history.seconds.iter().map(|second| second.second).collect();
    assert!(seconds.windows(2).all(|pair| pair[0] + 1 == pair[1]));
}
