//! Too much of something over HTTP: readers that do not read, bodies that do not end. The router's memory is
//! looked at from outside.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::{TEXT, answer, post};
use crate::models::{default_model, tiny_model, tiny_prompt};
use crate::process::{Process, peak_resident_mib, resident_mib};
use crate::service::{Roles, Setup};

/// Memory that a router may take for one reader that does not read, in MiB.
const PER_READER_MIB: u64 = 64;

/// Sends a request and reads nothing.
fn open(process: &Process, path: &str, length: usize, body: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(process.http()).expect("it listens");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).expect("it reads");
    // It may be refused half way.
    let _ = connection.write_all(body);
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn str_07_a_reader_that_stops_reading_is_given_up_and_slows_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let process = &service.process;
    let fast: Vec<Value> = (0..8)
        .map(|seed| {
            json!({"prompt": tiny_prompt(seed, 120), "max_tokens": 200, "temperature": 0, "ignore_eos": true})
        })
        .collect();
    let ask = || {
        std::thread::scope(|scope| {
            let asked: Vec<_> = (fast.iter())
                .map(|body| scope.spawn(move || answer(process, TEXT, body)["choices"].clone()))
                .collect();
            let answers = asked
                .into_iter()
                .map(|asked| asked.join().expect("an answer"));
            answers.collect::<Vec<_>>()
        })
    };
    let expected = ask();
    let router = service.status().await.router.expect("router").pid;
    let before = resident_mib(router);
    // Far too large for any buffer on its way; one is never read, one by a byte now and then.
    let flood = json!({
        "prompt": tiny_prompt(1, 80), "n": 16, "max_tokens": 1900, "temperature": 0.9, "seed": 3,
        "ignore_eos": true, "logprobs": 20, "stream": true,
    })
    .to_string();
    let _held = open(process, TEXT, flood.len(), flood.as_bytes());
    let mut slow = open(process, TEXT, flood.len(), flood.as_bytes());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let reading = std::thread::spawn(move || {
        while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) =
            stopped.recv_timeout(Duration::from_millis(100))
        {
            let _ = slow.read(&mut [0]);
        }
    });
    let mut most = before;
    while service.counter("slow_readers").await < 2 {
        assert_eq!(ask(), expected, "fast readers get what is theirs");
        most = most.max(resident_mib(router));
    }
    drop(stop);
    reading.join().expect("it ends");
    service.assert_idle().await;
    println!("router: {before} MiB before, {most} MiB at most");
    assert!(
        most <= before + 2 * PER_READER_MIB,
        "from {before} to {most} MiB"
    );
}

#[test]
fn sec_05_many_large_bodies_take_no_more_than_their_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let room: u64 = 32 << 20;
    let flags = [
        "--http-listen",
        "127.0.0.1:0",
        "--max-body-bytes",
        &room.to_string(),
    ];
    let router = roles.router(&flags);
    let before = resident_mib(router.pid());
    // 400 MB that never end.
    let part = vec![b' '; 4_000_000];
    let held: Vec<TcpStream> = (0..100)
        .map(|_| open(&router, "/tokenize", part.len() + 1, &part))
        .collect();
    let most = resident_mib(router.pid());
    let small = json!({"prompt": "x"});
    let (status, said) = post(&router, "/tokenize", &small, &[]);
    assert_eq!(status, 200, "{said}");
    let mut refused = 0;
    for mut connection in held {
        let limit = Some(Duration::from_millis(20));
        connection.set_read_timeout(limit).expect("a timeout");
        let mut start = [0; 12];
        refused +=
            usize::from(connection.read_exact(&mut start).is_ok() && &start == b"HTTP/1.1 503");
    }
    println!("router: {before} MiB before, {most} MiB with {refused} of 100 refused");
    assert!(refused >= 80, "{refused}");
    // A body may lie there twice while it grows; connections have buffers.
    assert!(
        most <= before + 3 * (room >> 20) + 32,
        "from {before} to {most} MiB"
    );
    let (status, said) = post(&router, "/tokenize", &small, &[]);
    assert_eq!(status, 200, "{said}");
}

#[test]
fn sec_05_what_goes_for_all_prompts_is_not_held_once_for_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let router = roles.router(&["--http-listen", "127.0.0.1:0"]);
    let before = peak_resident_mib(router.pid());
    let prompts = vec!["x"; 128];
    let long = "y".repeat(4_000_000);
    for (name, value, status, words) in [
        ("model", json!(long), 404, "is not served here"),
        ("cache_salt", json!(long), 400, "cache_salt"),
        ("stop", json!([long]), 400, "stop"),
    ] {
        let mut body = json!({"prompt": prompts, "max_tokens": 1});
        body[name] = value;
        let body = body.to_string();
        let mut connection = open(&router, TEXT, body.len(), body.as_bytes());
        let mut answer = vec![0; 4 << 10];
        let length = connection.read(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..length]);
        let expected = format!("HTTP/1.1 {status}");
        assert!(
            answer.starts_with(&expected) && answer.contains(words),
            "{name}: {answer}"
        );
    }
    let most = peak_resident_mib(router.pid());
    println!("router: {before} MiB before, {most} MiB at most");
    // The body, what is read from it, the message made of it, each perhaps in a buffer that has doubled.
    assert!(most <= before + 64, "from {before} to {most} MiB");
}

fn reference() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/reference/reference.json"
    );
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn tok_05_three_turns_have_the_golden_ids() {
    let roles = Roles::new(&default_model());
    let router = roles.router(&["--http-listen", "127.0.0.1:0"]);
    let reference = reference();
    let items = reference["items"].as_array().expect("a list").iter();
    let ids = |value: &Value| -> Vec<u64> { serde_json::from_value(value.clone()).expect("ids") };
    // Chats that the model ended by itself: what it said can be the second turn of a longer one.
    let (end, line) = (2, 198);
    let chats: Vec<_> = items
        .filter(|item| item["kind"] == "chat" && ids(&item["gen_ids"]).last() == Some(&end))
        .collect();
    assert!(chats.len() >= 2, "{}", chats.len());
    for (item, next) in chats.iter().zip(chats.iter().cycle().skip(1)) {
        let said = item["gen_text"].as_str().expect("a text");
        let body = json!({"messages": [
            {"role": "user", "content": item["prompt"]},
            {"role": "assistant", "content": said.trim_end_matches("<|im_end|>")},
            {"role": "user", "content": next["prompt"]},
        ]});
        let told = answer(&router, "/tokenize", &body);
        // The reference's own ids: the first turn, the answer, the other chat without its system turn.
        let mut golden = [ids(&item["prompt_ids"]), ids(&item["gen_ids"]), vec![line]].concat();
        let other = ids(&next["prompt_ids"]);
        let system = other.windows(2).position(|pair| pair == [end, line]);
        golden.extend(&other[system.expect("a system turn") + 2..]);
        assert_eq!(ids(&told["tokens"]), golden, "{body}");
    }
}
