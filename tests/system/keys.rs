//! API keys: who is served, within which limits, and that keys share nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::models::{slow_model, tiny_model, tiny_prompt};
use crate::process::{Ended, PATIENCE, baton, baton_with};
use crate::service::Setup;

/// A key and the lines of the file that make it known.
fn new_key(flags: &[&str]) -> (String, String) {
    let ended = baton(&[&["keys", "new"], flags].concat());
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let key = ended.stdout.trim().to_owned();
    let (_, lines) = ended.stderr.split_once("\n\n").expect("lines");
    assert!(!lines.contains(&key), "the key itself stands in the file");
    (key, lines.to_owned())
}

fn generate(address: &str, key: Option<&str>, length: usize, tokens: &str) -> Ended {
    let ids: Vec<String> = tiny_prompt(7, length)
        .iter()
        .map(ToString::to_string)
        .collect();
    let ids = ids.join(",");
    let arguments = ["generate", "--connect", address, "--token-ids", &ids];
    let arguments = [
        &arguments[..],
        &["--max-tokens", tokens, "--ignore-eos", "--format", "json"],
    ]
    .concat();
    match key {
        Some(key) => baton_with(&arguments, &[("BATON_API_KEY", key)]),
        None => baton(&arguments),
    }
}

fn receipt(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let last = ended.stdout.lines().last().expect("an event");
    let done: Value = serde_json::from_str(last).expect("JSON");
    done["receipt"].clone()
}

fn refused(ended: &Ended, parts: &[&str]) {
    assert_eq!(ended.code, Some(3), "{ended:#?}");
    let told = format!("{}{}", ended.stdout, ended.stderr);
    for part in parts {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
}

fn write(path: &Path, lines: &[&str]) {
    // As an operator should: whole, or not at all.
    let new = path.with_extension("new");
    std::fs::write(&new, lines.concat()).expect("writable");
    std::fs::rename(new, path).expect("replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_open_the_service_and_share_no_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, one_lines) = new_key(&["one"]);
    let (two, two_lines) = new_key(&["two"]);
    let (admin, admin_lines) = new_key(&["operator", "--admin"]);
    let list = folder.path().join("keys.toml");
    write(&list, &[&one_lines, &two_lines, &admin_lines]);
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--api-keys", list.display())
        .start()
        .await;
    let address = service.address.clone();
    let key_file = folder.path().join("one.key");
    std::fs::write(&key_file, format!("{one}\n")).expect("writable");

    refused(
        &generate(&address, None, 300, "4"),
        &["UNAUTHENTICATED", "API key"],
    );
    let wrong = format!("{}0", &one[..one.len() - 1]);
    refused(
        &generate(&address, Some(&wrong), 300, "4"),
        &["UNAUTHENTICATED"],
    );
    // Equal prompts: a hit for the same key, none for another.
    let hit =
        |key: &str| receipt(&generate(&address, Some(key), 300, "4"))["cached_tokens"].clone();
    assert_eq!(hit(&one), 0);
    assert_ne!(hit(&one), 0);
    assert_eq!(hit(&two), 0);
    assert_ne!(hit(&two), 0);
    // Without TLS this is told, since the key can be read on the way (here it cannot: loopback).
    let status = |more: &[&str]| baton(&[&["status", "--connect", &address], more].concat());
    refused(&status(&[]), &["UNAUTHENTICATED"]);
    let file = key_file.display().to_string();
    refused(
        &status(&["--api-key-file", &file]),
        &["PERMISSION_DENIED", "admin"],
    );
    let operator = baton_with(
        &["status", "--connect", &address],
        &[("BATON_API_KEY", &admin)],
    );
    assert_eq!(operator.code, Some(0), "{operator:#?}");

    // A key that is taken out is refused, the others go on.
    write(&list, &[&two_lines, &admin_lines]);
    let begin = Instant::now();
    while generate(&address, Some(&one), 300, "4").code == Some(0) {
        assert!(begin.elapsed() < PATIENCE, "{}", service.process.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    receipt(&generate(&address, Some(&two), 300, "4"));
    // A list that cannot be used changes nothing.
    write(&list, &["[[key]]\nname = \"x\"\n"]);
    let begin = Instant::now();
    while !service.process.log().contains("the former ones stay") {
        assert!(begin.elapsed() < PATIENCE, "{}", service.process.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    receipt(&generate(&address, Some(&two), 300, "4"));
    for key in [&one, &two, &admin] {
        assert!(
            !service.process.log().contains(key.as_str()),
            "a key in the log"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_have_limits_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (narrow, narrow_lines) = new_key(&["narrow", "--max-concurrent", "1"]);
    let (short, short_lines) = new_key(&["short", "--tokens-per-minute", "400"]);
    let list = folder.path().join("keys.toml");
    write(&list, &[&narrow_lines, &short_lines]);
    let service = Setup::new(&slow_model(folder.path()))
        .flag("--api-keys", list.display())
        .start()
        .await;
    let address = service.address.clone();

    // The second of two requests at once is refused; whoever is second.
    let both: Vec<_> = (0..2)
        .map(|_| {
            let (address, key) = (address.clone(), narrow.clone());
            std::thread::spawn(move || generate(&address, Some(&key), 300, "400"))
        })
        .collect();
    let both: Vec<Ended> = both
        .into_iter()
        .map(|one| one.join().expect("ran"))
        .collect();
    assert_eq!(
        both.iter().filter(|one| one.code == Some(0)).count(),
        1,
        "{both:#?}"
    );
    let second = both
        .iter()
        .find(|one| one.code != Some(0))
        .expect("refused");
    refused(second, &["RESOURCE_EXHAUSTED", "key narrow", "limit is 1"]);

    // 300 and 150 tokens are more than a minute's, so that the next prompt has to wait.
    receipt(&generate(&address, Some(&short), 300, "150"));
    refused(
        &generate(&address, Some(&short), 20, "1"),
        &["RESOURCE_EXHAUSTED", "key short", "400 tokens per minute"],
    );
    // The other key is not concerned.
    receipt(&generate(&address, Some(&narrow), 20, "1"));
}
