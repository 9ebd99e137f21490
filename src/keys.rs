//! `baton keys`: making API keys, and reading the list that a router takes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_router::{ApiKeys, KeyList, new_key};

use crate::args::{KeysArgs, KeysCommand, NewKeyArgs};
use crate::exit::Failure;
use crate::{output, small_file};

/// Largest list.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Pause between looks at the list.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs a subcommand.
pub(crate) fn run(args: &KeysArgs) -> Result<(), Failure> {
    match &args.command {
        KeysCommand::New(args) => new(args),
    }
}

/// The key goes to standard output alone, so that it can be sent into a file; the rest is for eyes.
fn new(args: &NewKeyArgs) -> Result<(), Failure> {
    use std::fmt::Write as _;
    let (key, hash) = new_key();
    let mut lines = format!("[[key]]\nname = \"{}\"\nhash = \"{hash}\"\n", args.name);
    // Writing to a String cannot fail.
    if let Some(limit) = args.max_concurrent {
        let _ = writeln!(lines, "max_concurrent = {limit}");
    }
    if let Some(limit) = args.tokens_per_minute {
        let _ = writeln!(lines, "tokens_per_minute = {limit}");
    }
    if args.admin {
        lines.push_str("admin = true\n");
    }
    // What a router would refuse is not printed.
    KeyList::parse(&lines).map_err(|error| Failure::usage(error.to_string()))?;
    output::remark("The key, shown this once:\n");
    output::result(&format!("{key}\n"))?;
    output::remark(&format!("Add to the file of --api-keys:\n\n{lines}\n"));
    Ok(())
}

/// Reads a router's list, and again whenever it changes.
pub(crate) fn follow(path: PathBuf) -> Result<ApiKeys, Failure> {
    let wrong = |error: String| Failure::usage(format!("--api-keys {}: {error}", path.display()));
    let (text, list) = read(&path).map_err(wrong)?;
    let keys = ApiKeys::new(&list);
    tokio::spawn(reload(path, text, keys.clone()));
    Ok(keys)
}

fn read(path: &Path) -> Result<(String, KeyList), String> {
    let text = small_file::read(path, MAX_LIST_BYTES)?;
    let list = KeyList::parse(&text).map_err(|error| error.to_string())?;
    Ok((text, list))
}

/// Looks at the file until the process ends. A list that cannot be used is told once and changes nothing.
async fn reload(path: PathBuf, mut used: String, keys: ApiKeys) {
    let mut told = String::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let look = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || read(&path))
        };
        match look.await {
            Ok(Ok((text, _))) if text == used => told.clear(),
            Ok(Ok((text, list))) => {
                keys.replace(&list);
                used = text;
                told.clear();
                tracing::info!("API keys have changed and are used");
            }
            Ok(Err(error)) => {
                if error != told {
                    tracing::warn!(
                        "API keys have changed and cannot be used, the former ones stay: {error}"
                    );
                    told = error;
                }
            }
            Err(_) => return,
        }
    }
}
