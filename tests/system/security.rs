//! Where a process listens, and what security flags must come together.

use crate::certificates::Authority;
use crate::models::tiny_model;
use crate::process::{Process, assert_refused, baton};
use crate::tls::until_logged;

#[test]
fn listening_beyond_this_machine_needs_tls_or_a_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    for role in ["up", "router", "decode", "prefill"] {
        let mut arguments = vec![role, "--model", &model, "--listen", "0.0.0.0:0"];
        if role != "up" && role != "router" {
            arguments.extend(["--advertise", "127.0.0.1"]);
        }
        assert_refused(
            &arguments,
            2,
            &["--listen 0.0.0.0:0", "--tls-cert", "--insecure-listen"],
        );
    }
    let arguments = ["router", "--model", &model, "--listen", "0.0.0.0:0"];
    let arguments = [&arguments[..], &["--insecure-listen"]].concat();
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let router = Process::start(&arguments);
    until_logged(&router, "without TLS");
    let port = router.address().rsplit_once(':').expect("a port").1;
    let status = baton(&["status", "--connect", &format!("127.0.0.1:{port}")]);
    assert_eq!(status.code, Some(0), "{status:#?}");
    drop(router);

    let own = Authority::new(folder.path(), "ca");
    let signed = own.sign("router");
    let arguments = ["router", "--model", &model, "--listen", "0.0.0.0:0"];
    let arguments = [&arguments[..], &signed.flags(&own.ca)].concat();
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let router = Process::start(&arguments);
    assert!(!router.log().contains("without TLS"), "{}", router.log());
}

#[test]
fn flags_that_belong_together_are_asked_for_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let own = Authority::new(folder.path(), "ca");
    let (a, b) = (own.sign("a"), own.sign("b"));
    let (ca, cert, key) = (own.ca.as_str(), a.cert.as_str(), a.key.as_str());
    let missing = folder.path().join("missing").display().to_string();
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("router", &["--tls-cert", cert], &["--tls-key"]),
        ("decode", &["--tls-key", key], &["--tls-cert"]),
        ("router", &["--tls-ca", ca], &["--tls-ca", "--tls-cert"]),
        (
            "router",
            &["--client-ca", ca],
            &["--client-ca", "--tls-cert"],
        ),
        (
            "router",
            &["--tls-cert", cert, "--tls-key", key],
            &["--tls-ca", "register"],
        ),
        (
            "prefill",
            &["--tls-cert", cert, "--tls-key", key],
            &["--tls-ca", "together"],
        ),
        ("router", &["--tls-name", "x"], &["--tls-name", "--tls-ca"]),
        (
            "router",
            &["--tls-cert", cert, "--tls-key", &b.key, "--tls-ca", ca],
            &["b.key", "does not fit", "a.crt"],
        ),
        (
            "router",
            &["--tls-cert", key, "--tls-key", key, "--tls-ca", ca],
            &["a.key", "no PEM certificate"],
        ),
        (
            "router",
            &["--tls-cert", cert, "--tls-key", cert, "--tls-ca", ca],
            &["a.crt", "no PEM private key"],
        ),
        (
            "decode",
            &["--tls-cert", cert, "--tls-key", key, "--tls-ca", &missing],
            &["missing", "No such file"],
        ),
        (
            "router",
            &["--api-keys", &missing],
            &["--api-keys", "missing"],
        ),
        ("router", &["--api-keys", cert], &["--api-keys", "a.crt"]),
    ];
    for (role, flags, parts) in cases {
        assert_refused(&[&[*role, "--model", &model], *flags].concat(), 2, parts);
    }
    let clients: &[(&[&str], &[&str])] = &[
        (&["--tls-cert", cert], &["--tls-key"]),
        (&["--tls-cert", cert, "--tls-key", key], &["--tls-ca"]),
        (&["--tls-ca", &missing], &["missing"]),
        (
            &["--tls-ca", ca, "--connect", "http://127.0.0.1:1"],
            &["http", "--tls-ca"],
        ),
        (
            &["--connect", "https://127.0.0.1:1"],
            &["https", "--tls-ca"],
        ),
        (
            &["--api-key-file", &missing],
            &["--api-key-file", "missing"],
        ),
    ];
    for (flags, parts) in clients {
        assert_refused(&[&["status"], *flags].concat(), 2, parts);
    }
}
