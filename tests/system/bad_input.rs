//! Flags and requests that are wrong: a message that names the value and what is allowed, an exit code, and
//! never a process that waits, grows or claims to be ready.

use crate::models::tiny_model;
use crate::process::{Ended, assert_refused, baton};
use crate::service::Setup;

/// Arguments, and what the message must hold.
type Case<'a> = (&'a [&'a str], &'a [&'a str]);

#[test]
fn hostile_numbers_of_workers_are_refused_by_value_and_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let too_long = "x".repeat(65);
    let cases: &[Case<'_>] = &[
        (&["--pages", "0"], &["--pages", "0", "1 to 16777216"]),
        (
            &["--pages", "4294967295"],
            &["--pages", "4294967295", "1 to 16777216"],
        ),
        (&["--pages", "4294967296"], &["--pages", "4294967296"]),
        (&["--pages", "-1"], &["-1"]),
        (&["--page-size", "0"], &["--page-size", "0", "1 to 256"]),
        (&["--page-size", "257"], &["--page-size", "257", "1 to 256"]),
        (&["--threads", "0"], &["--threads", "0", "1 to 1024"]),
        (
            &["--threads", "1000000"],
            &["--threads", "1000000", "1 to 1024"],
        ),
        (
            &["--token-budget", "0"],
            &["--token-budget", "0", "1 to 65536"],
        ),
        (
            &["--token-budget", "18446744073709551615"],
            &["--token-budget", "18446744073709551615"],
        ),
        (&["--token-budget", "many"], &["--token-budget", "many"]),
        (&["--max-batch", "0"], &["--max-batch", "0", "1 to"]),
        (&["--max-batch", "70000"], &["--max-batch", "70000"]),
        (&["--cpus", "0-99999"], &["--cpus", "0-99999", "4095"]),
        (&["--cpus", "3-1"], &["--cpus", "3-1"]),
        (&["--worker-id", "../etc"], &["--worker-id", "../etc", "64"]),
        (&["--worker-id", &too_long], &["--worker-id", "64"]),
        (
            &["--listen", "nowhere"],
            &["--listen", "nowhere", "IP:PORT"],
        ),
        (&["--listen", "127.0.0.1:70000"], &["--listen", "70000"]),
        (&["--listen", "0.0.0.0:0"], &["--listen", "--advertise"]),
        (
            &["--drain-limit-ms", "99999999999"],
            &["--drain-limit-ms", "99999999999", "3600000"],
        ),
        (
            &["--transport", "pigeon"],
            &["--transport", "pigeon", "shm"],
        ),
        (&["--kv-dtype", "int3"], &["--kv-dtype", "int3", "int8"]),
    ];
    for role in ["prefill", "decode"] {
        for (flags, parts) in cases {
            let arguments = [&[role, "--model", &model], *flags].concat();
            assert_refused(&arguments, 2, parts);
        }
    }
    // Valid numbers that no machine can serve.
    let huge = [
        "decode",
        "--model",
        &model,
        "--pages",
        "16777216",
        "--page-size",
        "256",
    ];
    assert_refused(&huge, 1, &["16777216 pages", "are available"]);
    assert_refused(&["decode"], 2, &["--model"]);
}

#[test]
fn hostile_numbers_of_the_service_are_refused_by_value_and_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let cases: &[Case<'_>] = &[
        (&["--prefill", "65"], &["--prefill", "65", "0 to 64"]),
        (&["--decode", "0"], &["--decode", "0", "1 to 64"]),
        (
            &["--decode", "4294967295"],
            &["--decode", "4294967295", "1 to 64"],
        ),
        (
            &["--prefill-threads", "0"],
            &["--prefill-threads", "0", "1 to 1024"],
        ),
        (
            &["--decode-threads", "5000"],
            &["--decode-threads", "5000", "1 to 1024"],
        ),
        (&["--pages", "0"], &["--pages", "0", "1 to 16777216"]),
        (
            &["--page-size", "100000"],
            &["--page-size", "100000", "1 to 256"],
        ),
        (
            &["--prefill-token-budget", "0"],
            &["token-budget", "0", "1 to 65536"],
        ),
        (
            &["--decode-token-budget", "9999999"],
            &["token-budget", "9999999", "1 to 65536"],
        ),
        (
            &["--local-prefill-tokens", "4294967295"],
            &["local_prefill_tokens", "4294967295", "1048576"],
        ),
        (&["--listen", "nowhere"], &["--listen", "nowhere"]),
    ];
    for (flags, parts) in cases {
        let arguments = [&["up", "--model", &model], *flags].concat();
        let listen: &[&str] = if flags[0] == "--listen" {
            &[]
        } else {
            &["--listen", "127.0.0.1:0"]
        };
        assert_refused(&[&arguments[..], listen].concat(), 2, parts);
    }
    let cases: &[Case<'_>] = &[
        (&["--max-running", "0"], &["max_running", "0", "1 to 65536"]),
        (
            &["--max-running", "65537"],
            &["max_running", "65537", "1 to 65536"],
        ),
        (
            &["--max-waiting", "65537"],
            &["max_waiting", "65537", "0 to 65536"],
        ),
        (&["--grant-wait-ms", "0"], &["grant_wait", "0"]),
        (
            &["--grant-wait-ms", "18446744073709551615"],
            &["grant_wait"],
        ),
        (
            &["--local-prefill-tokens", "4294967295"],
            &["local_prefill_tokens", "4294967295"],
        ),
        (
            &["--membership", "carrier"],
            &["--membership", "carrier", "static:FILE"],
        ),
    ];
    for (flags, parts) in cases {
        let router = ["router", "--model", &model, "--listen", "127.0.0.1:0"];
        assert_refused(&[&router[..], flags].concat(), 2, parts);
    }
}

#[test]
fn hostile_arguments_of_clients_are_refused_before_anybody_is_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing").display().to_string();
    let cases: &[Case<'_>] = &[
        (&["--token-ids", "1,two"], &["--token-ids", "two"]),
        (
            &["--token-ids", "4294967296"],
            &["--token-ids", "4294967296"],
        ),
        (&["--token-ids=-1"], &["--token-ids", "-1"]),
        (
            &["--prompt", "x", "--n", "99999999999"],
            &["--n", "99999999999"],
        ),
        (
            &["--prompt", "x", "--max-tokens", "99999999999"],
            &["--max-tokens"],
        ),
        (
            &["--prompt", "x", "--temperature", "hot"],
            &["--temperature", "hot"],
        ),
        (
            &["--prompt", "x", "--temperature", "NaN"],
            &["--temperature", "NaN", "finite"],
        ),
        (
            &["--prompt", "x", "--min-p=-inf"],
            &["--min-p", "-inf", "finite"],
        ),
        (&["--prompt", "x", "--top-k=-1"], &["--top-k", "-1"]),
        (&["--prompt", "x", "--chat", "y"], &["--prompt", "--chat"]),
        (&["--prompt-file", &missing], &["--prompt-file", &missing]),
        (
            &["--prompt-file", "/dev/zero"],
            &["--prompt-file", "/dev/zero", "67108864"],
        ),
        (&[], &["--prompt", "--token-ids"]),
    ];
    for (flags, parts) in cases {
        // Nobody listens there: a refusal comes first.
        let generate = ["generate", "--connect", "127.0.0.1:1"];
        assert_refused(&[&generate[..], flags].concat(), 2, parts);
    }
    let cases: &[Case<'_>] = &[
        (&["--requests", "0"], &["--requests", "0"]),
        (&["--concurrency", "0"], &["--concurrency", "0"]),
        (&["--rate", "0"], &["--rate", "0"]),
        (&["--rate", "NaN"], &["--rate", "NaN", "finite"]),
        (
            &["--ttft-target-ms", "inf"],
            &["--ttft-target-ms", "inf", "finite"],
        ),
        (&["--prompt-tokens", "9-3"], &["--prompt-tokens", "9-3"]),
        (&["--prompt-tokens", "lots"], &["--prompt-tokens", "lots"]),
        (&["--steady", "0"], &["--steady", "0"]),
        (
            &["--steady", "1", "--rounds", "2"],
            &["--rounds", "--inject"],
        ),
        (
            &["--steady", "1", "--inject", "1", "--rounds", "0"],
            &["--rounds", "1 to 100"],
        ),
        (&["--plot", "/none/x.svg"], &["/none/x.svg"]),
    ];
    for (flags, parts) in cases {
        let bench = ["bench", "serve", "--connect", "127.0.0.1:1"];
        assert_refused(&[&bench[..], flags].concat(), 2, parts);
    }
    assert_refused(
        &["status", "--connect", "not an address"],
        2,
        &["not an address"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_requests_have_messages_and_exit_codes() {
    let folder = tempfile::tempdir().expect("a folder");
    let nobody = baton(&["status", "--connect", "127.0.0.1:1"]);
    assert_eq!(nobody.code, Some(4), "{nobody:?}");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let wrong = |more: &[&str]| -> Ended {
        let generate = ["generate", "--connect", &service.address, "--prompt", "x"];
        baton(&[&generate[..], more].concat())
    };
    let table: &[Case<'_>] = &[
        (&["--top-p", "1.5"], &["top_p", "1.5"]),
        (&["--temperature=-1"], &["temperature", "-1"]),
        (&["--n", "4294967295"], &["n", "4294967295", "16"]),
        (
            &["--max-tokens", "4294967295"],
            &["max_tokens", "4294967295"],
        ),
        (&["--stop", ""], &["stop"]),
    ];
    let text = wrong(&["--logprobs", "2"]);
    assert_eq!(text.code, Some(2), "{text:?}");
    assert!(text.stderr.contains("--format json"), "{text:?}");
    let json = wrong(&["--logprobs", "21", "--format", "json"]);
    assert_eq!(json.code, Some(3), "{json:?}");
    for part in ["INVALID_ARGUMENT", "logprobs", "21", "20"] {
        assert!(json.stdout.contains(part), "no {part:?}: {json:?}");
    }
    let text = wrong(&["--prompt-logprobs", "2"]);
    assert_eq!(text.code, Some(2), "{text:?}");
    assert!(text.stderr.contains("--format json"), "{text:?}");
    let json = wrong(&["--prompt-logprobs", "4294967295", "--format", "json"]);
    assert_eq!(json.code, Some(3), "{json:?}");
    for part in ["INVALID_ARGUMENT", "prompt_logprobs", "4294967295", "20"] {
        assert!(json.stdout.contains(part), "no {part:?}: {json:?}");
    }
    for (flags, parts) in table {
        let ended = wrong(flags);
        assert_eq!(ended.code, Some(3), "{flags:?}: {ended:?}");
        for part in [&["INVALID_ARGUMENT"], *parts].concat() {
            assert!(
                ended.stderr.contains(part),
                "no {part:?}; {flags:?}: {ended:?}"
            );
        }
        let ended = wrong(&[flags, &["--format", "json"][..]].concat());
        assert_eq!(ended.code, Some(3), "{flags:?}: {ended:?}");
        let event: serde_json::Value = serde_json::from_str(ended.stdout.trim()).expect("JSON");
        assert_eq!(
            (&event["event"], &event["code"]),
            (&"error".into(), &"INVALID_ARGUMENT".into())
        );
    }
    let occupied = &service.address;
    let model = tiny_model(folder.path()).display().to_string();
    for role in ["router", "decode"] {
        let arguments = [role, "--listen", occupied, "--model", &model];
        assert_refused(&arguments, 1, &[occupied]);
    }
    service.assert_idle().await;
}
