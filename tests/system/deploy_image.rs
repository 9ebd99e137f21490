//! What the image promises of the binary: another user than root, without capabilities, on a root file system
//! that nobody writes, with nothing but a temporary folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::client::Client;
use crate::models::{endless, tiny_model, tiny_prompt};
use crate::namespace::PROBED;
use crate::process::{Process, Turn};

/// Runs what it is given in such a place; the first argument is the folder that stays writable.
const CONFINED: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o size=16m,mode=1777 tmpfs "$1"
mount -o remount,bind,ro /
export TMPDIR="$1"
shift
unset HOME XDG_RUNTIME_DIR
exec setpriv --reuid=65532 --regid=65532 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"#;

/// A folder that everyone may enter.
fn open_folder(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_images, ignore = "no place as an image makes it here")]
async fn the_service_runs_as_the_image_runs_it() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    open_folder(folder.path());
    let writable = folder.path().join("tmp");
    std::fs::create_dir(&writable).expect("a folder");
    // The binary may lie where that user has no way to.
    let binary = folder.path().join("baton");
    std::fs::copy(env!("CARGO_BIN_EXE_baton"), &binary).expect("room for the binary");
    let model = tiny_model(folder.path());
    let confine = |command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", CONFINED, "sh"]);
        unshare.arg(&writable).args(command);
        unshare
    };
    let tried = confine(&["sh", "-c", "! touch /written && touch $TMPDIR/written"]).output();
    let tried = tried.unwrap_or_else(|why| panic!("{PROBED}: {why}"));
    assert!(tried.status.success(), "{PROBED}: {tried:?}");
    let [binary, model] = [&binary, &model].map(|path| path.display().to_string());
    let process = Process::started(confine(&[&binary, "up", "--model", &model]).args([
        "--listen",
        "127.0.0.1:0",
        "--http-listen",
        "off",
        "--local-prefill-tokens",
        "0",
    ]));
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()));
    let status = status.expect("it runs");
    for line in [
        "Uid:\t65532\t65532",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "no {line:?} in {status}");
    }
    let client = Client::connect(process.address()).await;
    client.until_ready(2).await;
    let answer = client.generate(endless(tiny_prompt(1, 100), 4)).await;
    assert_eq!(answer.expect("an answer").ids().len(), 4);
}
