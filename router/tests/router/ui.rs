//! The page and its data over HTTP; what a browser makes of them is in `tests/ui`.

use baton_proto::v1;
use baton_router::{ApiKeys, KeyList};
use serde_json::{Value, json};

use crate::fake::endless;
use crate::harness::{Harness, config, long, soon};
use crate::web::{JSON, Web};

const DRAIN: &str = "/ui/api/drain";
const STATE: &str = "/ui/api/state";

async fn get_with(harness: &Harness, path: &str, head: &str) -> Web {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n");
    Web::raw(&harness.http, request.as_bytes()).await
}

/// Posts as if from a page of this host.
async fn post_at(harness: &Harness, host: &str, head: &str, body: &str) -> Web {
    let length = body.len();
    let request = format!(
        "POST {DRAIN} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n{body}"
    );
    Web::raw(&harness.http, request.as_bytes()).await
}

#[tokio::test]
async fn files_come_with_tags_and_a_strict_policy() {
    let harness = Harness::start(config()).await;
    let to = Web::get(&harness, "/ui").await;
    assert_eq!((to.status, to.headers["location"].as_str()), (308, "ui/"));
    let files = [
        ("/ui/", "text/html"),
        ("/ui/main.js", "text/javascript"),
        ("/ui/style.css", "text/css"),
        ("/ui/icon.svg", "image/svg+xml"),
    ];
    for (path, kind) in files {
        let file = Web::get(&harness, path).await;
        let policy = &file.headers["content-security-policy"];
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(
            file.headers["content-type"].starts_with(kind),
            "{:?}",
            file.headers
        );
        assert_eq!(file.headers["x-content-type-options"], "nosniff");
        assert_eq!(file.headers["cache-control"], "no-cache");
        let tag = file.headers["etag"].clone();
        assert!(!file.expect(200).await.is_empty());
        let held = format!("If-None-Match: \"other\", W/{tag}\r\n");
        let again = get_with(&harness, path, &held).await;
        assert_eq!((again.status, &again.headers["etag"]), (304, &tag));
        assert!(again.body().await.is_empty());
    }
    for path in ["/ui/nothing.js", "/ui/..%2fCargo.toml", "/ui/api/nothing"] {
        let missing = Web::get(&harness, path).await;
        assert_eq!(missing.status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_state_tells_workers_requests_and_seconds_and_no_text() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let answer = harness.generate(long(4)).await.unwrap().whole();
    harness.until_idle().await;
    let state = Web::get(&harness, STATE).await;
    assert_eq!(state.headers["cache-control"], "no-store");
    let state = state.value().await;
    assert_eq!(
        (&state["ready"], &state["keyed"]),
        (&json!(true), &json!(false))
    );
    let workers = state["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    for worker in workers {
        let pages = worker["pages"].as_object().unwrap();
        let sum: u64 = (pages.iter().filter(|(name, _)| *name != "total"))
            .map(|(_, count)| count.as_u64().unwrap())
            .sum();
        assert_eq!(sum, pages["total"].as_u64().unwrap());
    }
    let request = &state["requests"][0];
    assert_eq!(request["id"], json!(answer.receipt().request_id));
    assert_eq!(request["completion_tokens"], json!(4));
    assert_eq!(request["attempts"][0]["prefill_worker"], json!("prefill-0"));
    assert!(request.get("receipt").is_none());
    assert!(request.get("text").is_none() && request.get("prompt").is_none());
    let bins = state["bin_ends_us"].as_array().unwrap().len();
    let second = state["seconds"].as_array().unwrap().last().unwrap();
    assert!(second["ttft"]["counts"].as_array().unwrap().len() <= bins + 1);
    let path = format!("/ui/api/requests/{}", answer.receipt().request_id);
    let found = Web::get(&harness, &path).await.value().await;
    assert_eq!(
        found["request"]["receipt"]["seed"],
        json!(answer.receipt().seed)
    );
    let missing = Web::get(&harness, "/ui/api/requests/nobody").await;
    missing.error(404).await;
}

#[tokio::test]
async fn many_watchers_get_one_state() {
    let harness = Harness::start(config()).await;
    let seen = |_: u32| async {
        let state = Web::get(&harness, STATE).await.value().await;
        state["now_us"].as_u64().unwrap()
    };
    let all = futures::future::join_all((0..40).map(seen)).await;
    let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
    // One each half second, however long this machine takes.
    assert!(distinct.len() < 40, "{distinct:?}");
}

#[tokio::test]
async fn without_keys_only_the_page_itself_drains() {
    let (harness, _prefill, _decode) = Harness::pair(endless()).await;
    let body = r#"{"worker": "decode-0"}"#;
    let here = harness.http.clone();
    let cross = format!("{JSON}Sec-Fetch-Site: cross-site\r\n");
    post_at(&harness, &here, &cross, body)
        .await
        .error(403)
        .await;
    let origin = format!("{JSON}Origin: http://evil.example\r\n");
    post_at(&harness, &here, &origin, body)
        .await
        .error(403)
        .await;
    post_at(&harness, "evil.example", JSON, body)
        .await
        .error(403)
        .await;
    let form = "Content-Type: text/plain\r\n";
    post_at(&harness, &here, form, body).await.error(415).await;
    let wrong = post_at(&harness, &here, JSON, r#"{"worker": "x", "force": true}"#).await;
    assert!(
        wrong.error(400).await["message"]
            .as_str()
            .unwrap()
            .contains("force")
    );
    let nobody = post_at(&harness, &here, JSON, r#"{"worker": "decode-7"}"#).await;
    assert!(
        nobody.error(404).await["message"]
            .as_str()
            .unwrap()
            .contains("decode-7")
    );
    for worker in harness.list().await.workers {
        assert_eq!(worker.state, "ready", "nothing was drained so far");
    }
    let own = format!("{JSON}Sec-Fetch-Site: same-origin\r\nOrigin: http://{here}\r\n");
    let drained = post_at(&harness, &here, &own, body).await.expect(200).await;
    assert_eq!(
        serde_json::from_str::<Value>(&drained).unwrap(),
        json!({ "running": 0 })
    );
    soon("it drains", async {
        while !harness
            .list()
            .await
            .workers
            .iter()
            .any(|worker| worker.state == "draining")
        {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn with_keys_the_page_is_open_and_all_it_shows_needs_an_admin_key() {
    let entry = |name: &str, key: &str, more: &str| {
        let hash = blake3::hash(key.as_bytes()).to_hex();
        format!("[[key]]\nname = \"{name}\"\nhash = \"{hash}\"\n{more}\n")
    };
    let list = entry("client", "one", "") + &entry("boss", "two", "admin = true");
    let harness = Harness::under(ApiKeys::new(&KeyList::parse(&list).unwrap())).await;
    Web::get(&harness, "/ui/").await.expect(200).await;
    let body = r#"{"worker": "decode-0"}"#;
    let as_ = |key: &str| format!("Authorization: Bearer {key}\r\n");
    for path in [STATE, "/ui/api/requests/x"] {
        Web::get(&harness, path).await.error(401).await;
        get_with(&harness, path, &as_("three"))
            .await
            .error(401)
            .await;
        get_with(&harness, path, &as_("one")).await.error(403).await;
    }
    get_with(&harness, STATE, &as_("two"))
        .await
        .expect(200)
        .await;
    for (head, status) in [(String::new(), 401), (as_("one"), 403), (as_("two"), 404)] {
        let head = format!("{JSON}{head}");
        post_at(&harness, "baton.example", &head, body)
            .await
            .error(status)
            .await;
    }
    let unkeyed = harness
        .admin()
        .list_requests(v1::ListRequestsRequest::default())
        .await;
    assert_eq!(unkeyed.unwrap_err().code(), tonic::Code::Unauthenticated);
}
