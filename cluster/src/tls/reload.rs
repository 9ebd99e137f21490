//! Reads certificates again when their files change. It must not know how they are used.

use std::sync::Weak;
use std::time::Duration;

use super::Inner;
use super::files::Contents;

/// Pause between looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Follows the files for as long as somebody uses what they say. What cannot be used leaves things as
/// they are, and is told once.
pub(super) async fn follow(inner: Weak<Inner>, mut used: Contents) {
    // What was wrong at the last look, and whether it has been told: files are rarely replaced all at
    // once, so that only what stays wrong is worth a word.
    let mut wrong: Option<(String, bool)> = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let known = used.clone();
        let Ok(looked) = tokio::task::spawn_blocking(move || inner.look(&known)).await else {
            return;
        };
        match looked {
            Ok(None) => wrong = None,
            Ok(Some(contents)) => {
                used = contents;
                wrong = None;
                tracing::info!("certificates have changed; new connections use them");
            }
            Err(error) => {
                let error = error.to_string();
                let told = match wrong {
                    Some((before, told)) if before == error => {
                        if !told {
                            tracing::warn!(
                                "certificates have changed and cannot be used, the former ones stay: {error}"
                            );
                        }
                        true
                    }
                    _ => false,
                };
                wrong = Some((error, told));
            }
        }
    }
}
