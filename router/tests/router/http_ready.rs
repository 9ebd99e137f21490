//! When HTTP says that requests can be answered, and what it says before.

use serde_json::{Value, json};

use crate::fake::{Setup, endless, fingerprint};
use crate::harness::{Harness, MODEL, config, soon};
use crate::web::{CHAT, TEXT, Web};

/// Everything says "not now", and when to come again.
async fn serves_nothing(harness: &Harness) {
    assert_eq!(Web::get(harness, "/health/live").await.status, 200);
    let models = Web::get(harness, "/v1/models").await.value().await;
    assert_eq!(models["data"], json!([]));
    let name = format!("/v1/models/{}", MODEL.served.name());
    let message = json!([{"role": "user", "content": "hello"}]);
    let mut answers = vec![
        Web::get(harness, "/health").await,
        Web::get(harness, &name).await,
    ];
    for (path, body) in [
        (TEXT, json!({"prompt": "x"})),
        (TEXT, json!({"prompt": "x", "stream": true})),
        (CHAT, json!({"messages": message})),
        (CHAT, json!({"messages": message, "stream": true})),
    ] {
        answers.push(Web::json(harness, path, &body).await);
    }
    for answer in answers {
        let after: u64 = answer.headers["retry-after"].parse().unwrap();
        assert!((1..=60).contains(&after), "{after}");
        assert_eq!(answer.error(503).await["type"], "server_error");
    }
}

#[tokio::test]
async fn k8s_04_not_ready_before_a_model_can_be_served() {
    let harness = Harness::start(config()).await;
    serves_nothing(&harness).await;
    // A prefill worker generates nothing, and a decode worker of another model nothing for this one.
    let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    let foreign = Setup {
        fingerprint: baton_proto::domain::Fingerprint {
            metadata_digest: [9; 32],
            ..fingerprint()
        },
        ..Setup::decode("decode-9", endless())
    };
    let _foreign = foreign.start(&harness.address, &harness.board).await;
    serves_nothing(&harness).await;

    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    assert_eq!(Web::get(&harness, "/health").await.status, 200);
    let models = Web::get(&harness, "/v1/models").await.value().await;
    let served: Vec<&Value> = (models["data"].as_array().unwrap().iter())
        .map(|model| &model["id"])
        .collect();
    assert_eq!(served, [MODEL.served.name()]);
    let body = json!({"prompt": "x", "max_tokens": 2});
    Web::json(&harness, TEXT, &body).await.expect(200).await;

    // And no longer once it says that it drains.
    decode.report(|load| load.draining = true);
    soon("not ready", async {
        while Web::get(&harness, "/health").await.status != 503 {}
    })
    .await;
    serves_nothing(&harness).await;
}
