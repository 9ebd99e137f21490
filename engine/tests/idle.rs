//! Compute threads that have nothing to do take no time, and come back for the next step.
#![cfg(target_os = "linux")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::{TensorType, fixtures::TinyModel};
use common::{Sequence, bits, engine, load, options, step};

const THREADS: usize = 3;

/// Longest wait for threads to fall asleep.
const PATIENCE: Duration = Duration::from_secs(20);

/// This process's compute threads.
fn compute_threads() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").expect("threads");
    let paths = tasks.map(|task| task.expect("a thread").path());
    let is_compute = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("baton-compute"))
    };
    paths.filter(is_compute).collect()
}

/// Whether the thread sleeps, and the nanoseconds that it has run so far.
fn state(thread: &Path) -> (bool, u64) {
    let read = |file| fs::read_to_string(thread.join(file)).expect("a thread's figures");
    let (stat, times) = (read("stat"), read("schedstat"));
    let (_, after_name) = stat.rsplit_once(')').expect("a name");
    let ran = times.split_whitespace().next().expect("a time");
    (
        after_name.trim_start().starts_with('S'),
        ran.parse().expect("a number"),
    )
}

#[test]
fn threads_sleep_between_steps() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    let shape = TinyModel::default().with_type(TensorType::Q4_1);
    shape.write_gguf(&path).expect("the model is written");
    let model = load(&path);
    let mut engine = engine(&model, &options(THREADS, None), 16, 8, KvDtype::Bf16);
    let mut first = None;
    for round in 0..3 {
        let mut sequence = Sequence {
            pages: (0..8).map(PageIndex).collect(),
            position: 0,
        };
        let rows = step(&mut engine, &mut [(&mut sequence, &[5; 100])]);
        // The threads are the same and have the same result after every sleep.
        assert_eq!(bits(&rows[0]), *first.get_or_insert_with(|| bits(&rows[0])));
        let threads = compute_threads();
        assert_eq!(threads.len(), THREADS - 1, "round {round}");
        let waiting = Instant::now();
        loop {
            let before: Vec<_> = threads.iter().map(|thread| state(thread)).collect();
            // Long enough for a spinning thread to be seen, whatever it shares its processor with.
            std::thread::sleep(Duration::from_millis(50));
            let after: Vec<_> = threads.iter().map(|thread| state(thread)).collect();
            if before == after && after.iter().all(|(sleeps, _)| *sleeps) {
                break;
            }
            assert!(
                waiting.elapsed() < PATIENCE,
                "round {round}: {before:?}, then {after:?} (asleep, nanoseconds)"
            );
        }
    }
}
