//! Tasks run once each, on all threads, whatever the timing.

use std::{panic::AssertUnwindSafe, time::Duration};

use baton_model_file::fixtures::Random;

use super::*;

#[test]
fn every_task_runs_once_and_threads_have_their_own_values() {
    for threads in 1..=4 {
        let mut team = Threads::new(threads, &[]).expect("threads");
        for round in 0..20_000 {
            let tasks = round % 17;
            let ran: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            let own = PerThread::new(team.count(), || Ok::<_, ()>(0_u32)).expect("values");
            team.run(tasks, |thread, task| {
                ran[task].fetch_add(1, Relaxed);
                // SAFETY: this thread's own value.
                unsafe { *own.get(thread) += 1 };
            });
            assert!(
                ran.iter().all(|count| count.load(Relaxed) == 1),
                "round {round}"
            );
            // SAFETY: no task runs.
            let total: u32 = (0..threads).map(|thread| unsafe { *own.get(thread) }).sum();
            assert_eq!(total as usize, tasks);
        }
    }
}

#[test]
fn every_item_of_every_part_runs_once() {
    let seed = 17;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for threads in 1..=4 {
        let mut team = Threads::new(threads, &[]).expect("threads");
        for round in 0..5_000 {
            let items = random.below(60);
            let most = [1, 2, 5, usize::MAX][random.below(4)];
            let mut edges: Vec<usize> = (1..threads).map(|_| random.below(items + 1)).collect();
            edges.extend([0, items]);
            edges.sort_unstable();
            let ran: Vec<AtomicU32> = (0..items).map(|_| AtomicU32::new(0)).collect();
            let part = |thread: usize| edges[thread]..edges[thread + 1];
            team.run_parts(items, most, part, |_, bite| {
                assert!(!bite.is_empty());
                for item in bite {
                    ran[item].fetch_add(1, Relaxed);
                }
            });
            assert!(
                ran.iter().all(|count| count.load(Relaxed) == 1),
                "round {round}: {items} items, bites of {most}, {threads} threads"
            );
        }
    }
}

#[test]
fn bites_shrink_from_either_end() {
    let part = Part::default();
    part.fill(10..42);
    let bites = [
        (usize::MAX, true),
        (3, true),
        (usize::MAX, false),
        (0, false),
        (9, true),
        (9, true),
    ];
    let taken = bites.map(|(most, from_front)| part.take(most, from_front));
    let expected = [
        Some(10..34),
        Some(34..37),
        Some(38..42),
        Some(37..38),
        None,
        None,
    ];
    assert_eq!(taken, expected);
}

#[test]
fn idle_workers_sleep_and_wake_again() {
    let mut team = Threads::new(3, &[]).expect("threads");
    for _ in 0..3 {
        let patience = std::time::Instant::now();
        while team.shared.sleeping.load(SeqCst) < 2 {
            assert!(
                patience.elapsed() < Duration::from_secs(20),
                "workers go to sleep"
            );
            thread::yield_now();
        }
        // Each of three tasks waits for the others: all three threads must have come.
        let barrier = std::sync::Barrier::new(3);
        team.run(3, |_, _| {
            barrier.wait();
        });
    }
}

#[test]
fn a_panic_of_a_task_reaches_the_caller_and_the_team_goes_on() {
    let mut team = Threads::new(2, &[]).expect("threads");
    let run = AssertUnwindSafe(|| team.run(8, |_, task| assert_ne!(task, 5, "a bad task")));
    assert!(std::panic::catch_unwind(run).is_err());
    let count = AtomicU32::new(0);
    team.run(8, |_, _| {
        count.fetch_add(1, Relaxed);
    });
    assert_eq!(count.load(Relaxed), 8);
}

#[test]
fn threads_are_pinned_to_the_given_cpus_alone() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity");
    let cpu = (0..1024).find(|cpu| allowed.is_set(*cpu)).expect("a CPU");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut team = Threads::new(2, &[cpu]).expect("threads");
            team.adopt_caller().expect("pinned");
            let barrier = std::sync::Barrier::new(2);
            team.run(2, |_, _| {
                barrier.wait();
                let own = rustix::thread::sched_getaffinity(None).expect("an affinity");
                assert!(own.count() == 1 && own.is_set(cpu));
            });
        });
    });
}
