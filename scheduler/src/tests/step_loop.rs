//! The step loop on its own thread: events, slow and vanished readers, lost callers, engine faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::oracle::{LAYERS, Memory, Oracle, POISON, REFUSED, expected};
use super::rig::{CONTEXT, config, params, prompt, sampled, spec};
use crate::progress::LayerProgress;
use crate::{
    AfterPrompt, LoadSnapshot, SchedulerConfig, SequenceError, SequenceEvent, StepHandle, Token,
    spawn, step_loop,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// A running loop and the number of its steps.
fn start(config: SchedulerConfig) -> (StepHandle, Arc<AtomicU64>) {
    let steps = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&steps);
    let memory = Memory::new(config.pages, config.page_size);
    let engine = Oracle::new(memory, config.page_size, CONTEXT).on_step(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let handle = spawn(Box::new(engine), config).expect("starts");
    (handle, steps)
}

async fn next(events: &mut mpsc::Receiver<SequenceEvent>) -> Option<SequenceEvent> {
    timeout(PATIENCE, events.recv())
        .await
        .expect("an event in time")
}

/// Everything until the channel ends.
async fn all(mut events: mpsc::Receiver<SequenceEvent>) -> Vec<SequenceEvent> {
    let mut heard = Vec::new();
    while let Some(event) = next(&mut events).await {
        if !matches!(event, SequenceEvent::ChunkDone { .. }) {
            heard.push(event);
        }
    }
    heard
}

fn token_ids(heard: &[SequenceEvent]) -> Vec<u32> {
    let id = |event: &SequenceEvent| match event {
        SequenceEvent::Token(token) => Some(token.token_id),
        _ => None,
    };
    heard.iter().filter_map(id).collect()
}

/// Waits until the snapshot satisfies `is_there`.
async fn until(handle: &StepHandle, is_there: impl Fn(&LoadSnapshot) -> bool) {
    let mut handle = handle.clone();
    let wait = async {
        while !is_there(&handle.snapshot()) {
            handle.changed().await;
        }
    };
    timeout(PATIENCE, wait).await.expect("the state in time");
}

async fn idle(handle: &StepHandle) {
    until(handle, |load| {
        load.ledger.is_idle() && load.running == 0 && load.queued == 0
    })
    .await;
    assert!(handle.snapshot().ledger.is_balanced());
}

#[tokio::test]
async fn a_request_from_submit_to_done() {
    let (handle, _) = start(config(32, 16));
    let (text, params) = (prompt(1, 40), sampled(20, 5));
    let (sender, events) = mpsc::channel(8);
    let request = spec(Instant::now(), &text, params.clone());
    handle
        .submit(request, AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    let heard = all(events).await;
    assert!(matches!(
        heard[0],
        SequenceEvent::Scheduled {
            cached_tokens: 0,
            ..
        }
    ));
    assert!(matches!(heard[1], SequenceEvent::Token(_)));
    assert!(matches!(heard[2], SequenceEvent::PromptDone { .. }));
    assert_eq!(heard.last(), Some(&SequenceEvent::Done { preemptions: 0 }));
    assert_eq!(token_ids(&heard), expected(&text, &params, 20, &[])[0]);
    idle(&handle).await;
    assert_eq!(handle.snapshot().tokens, 20);
}

struct Told(Mutex<Vec<(u32, u32)>>, AtomicU64);

impl LayerProgress for Told {
    fn advance(&self, layer: u32, tokens: u32) {
        self.0.lock().expect("not poisoned").push((layer, tokens));
    }
    fn finish(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_hand_off_tells_layers_and_stays_pinned_until_release() {
    let mut settings = config(32, 16);
    settings.max_chunk = 16;
    let (handle, _) = start(settings);
    let told = Arc::new(Told(Mutex::default(), AtomicU64::new(0)));
    let listener = Arc::clone(&told);
    let factory = Box::new(move |_: &[_], _| listener as Arc<dyn LayerProgress>);
    let (sender, mut events) = mpsc::channel(8);
    let request = spec(Instant::now(), &prompt(1, 20), params(5));
    let id = handle
        .submit(request, AfterPrompt::HandOff, Some(factory), sender)
        .await
        .expect("accepted");
    loop {
        match next(&mut events).await {
            Some(SequenceEvent::PromptDone { running_choices }) => {
                assert_eq!(running_choices, [0]);
                break;
            }
            Some(_) => {}
            None => panic!("ended early"),
        }
    }
    let layers: Vec<_> = [16, 20]
        .into_iter()
        .flat_map(|tokens| (0..LAYERS).map(move |layer| (layer, tokens)))
        .collect();
    assert_eq!(*told.0.lock().expect("not poisoned"), layers);
    assert_eq!(told.1.load(Ordering::SeqCst), 1);
    drop(events);
    until(&handle, |load| load.ledger.live == 2).await;
    handle.release(id);
    idle(&handle).await;
}

#[tokio::test]
async fn reserve_land_and_quarantine() {
    let (handle, _) = start(config(32, 16));
    let request = spec(Instant::now(), &prompt(1, 20), params(5));
    let (sender, _events) = mpsc::channel(8);
    let reserved = handle.reserve(request.clone(), sender).await.expect("room");
    assert_eq!((reserved.slots.len(), reserved.reused_pages), (2, 0));
    until(&handle, |load| load.ledger.granted == 2).await;
    handle.quarantine(reserved.id);
    until(&handle, |load| load.ledger.quarantined == 2).await;
    let landed = handle.land(reserved.id, Vec::new(), vec![0]).await;
    assert_eq!(landed, Err(SequenceError::UnknownSequence));
    handle.release(reserved.id);
    idle(&handle).await;

    let (sender, events) = mpsc::channel(8);
    let reserved = handle.reserve(request, sender).await.expect("room");
    assert!(
        reserved.slots[0].1 > baton_kv_cache::Generation(1),
        "the slot changed hands"
    );
    let first = Token {
        choice: 0,
        position: 0,
        token_id: 3,
        logprobs: None,
        finish: None,
    };
    handle
        .land(reserved.id, vec![first], Vec::new())
        .await
        .expect("lands");
    assert_eq!(all(events).await, [SequenceEvent::Done { preemptions: 0 }]);
    idle(&handle).await;
}

#[tokio::test]
async fn a_vanished_reader_cancels() {
    let (handle, _) = start(config(64, 16));
    for cycle in 0..100 {
        let (sender, mut events) = mpsc::channel(64);
        let request = spec(Instant::now(), &prompt(cycle, 10), params(400));
        handle
            .submit(request, AfterPrompt::Decode, None, sender)
            .await
            .expect("accepted");
        for _ in 0..5 {
            assert!(next(&mut events).await.is_some());
        }
        drop(events);
        idle(&handle).await;
    }
    assert_eq!(handle.snapshot().cancelled, 100);
}

#[tokio::test]
async fn a_slow_reader_pauses_alone_and_catches_up() {
    let (handle, _) = start(config(64, 16));
    let (text, params) = (prompt(1, 10), sampled(60, 1));
    let submit = async |capacity| {
        let (sender, events) = mpsc::channel(capacity);
        let request = spec(Instant::now(), &text, params.clone());
        handle
            .submit(request, AfterPrompt::Decode, None, sender)
            .await
            .expect("accepted");
        events
    };
    let slow = submit(3).await;
    let quick = submit(3).await;
    let reference = expected(&text, &params, 60, &[]);
    assert_eq!(token_ids(&all(quick).await), reference[0]);
    // Everything else has ended: the slow one waits, and the loop sleeps.
    until(&handle, |load| load.running == 1).await;
    assert!(handle.snapshot().tokens < 60 + 10);
    assert_eq!(token_ids(&all(slow).await), reference[0]);
    idle(&handle).await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_too_slow() {
    let mut settings = config(64, 16);
    settings.write_deadline = Duration::from_millis(50);
    let (handle, _) = start(settings);
    let (sender, events) = mpsc::channel(2);
    let request = spec(Instant::now(), &prompt(1, 10), params(400));
    handle
        .submit(request, AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    idle(&handle).await;
    let heard = all(events).await;
    assert!(heard.len() <= 3, "{} events", heard.len());
    // The failure is told if the reader comes back within another write deadline; no other end is, in
    // any case.
    let error = SequenceError::SlowReader(Duration::from_millis(50));
    let failed = SequenceEvent::Failed(error);
    let progress = |event: &&SequenceEvent| {
        !matches!(event, SequenceEvent::Done { .. } | SequenceEvent::Failed(_))
    };
    let ends: Vec<_> = heard.iter().filter(|event| !progress(event)).collect();
    assert!(ends.is_empty() || ends == [&failed], "{heard:?}");
    assert!(
        ends.is_empty() || heard.last() == Some(&failed),
        "{heard:?}"
    );
}

#[tokio::test]
async fn the_loop_sleeps_when_nothing_can_run() {
    let (handle, steps) = start(config(4, 16));
    let (sender, _events) = mpsc::channel(8);
    // Reserved pages leave no room for the prompt that waits.
    let request = spec(Instant::now(), &prompt(1, 60), params(4));
    let reserved = handle.reserve(request, sender).await.expect("room");
    let (sender, events) = mpsc::channel(8);
    let request = spec(Instant::now(), &prompt(2, 30), params(3));
    handle
        .submit(request, AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    until(&handle, |load| load.queued == 1).await;
    assert_eq!(steps.load(Ordering::SeqCst), 0);
    handle.release(reserved.id);
    assert_eq!(token_ids(&all(events).await).len(), 3);
    idle(&handle).await;
}

#[tokio::test]
async fn deadlines_pass_without_a_step() {
    let (handle, steps) = start(config(4, 16));
    let (sender, events) = mpsc::channel(8);
    let mut request = spec(Instant::now(), &prompt(1, 60), params(4));
    request.deadline = Instant::now() + Duration::from_millis(30);
    let reserved = handle.reserve(request, sender).await.expect("room");
    let failed = SequenceEvent::Failed(SequenceError::DeadlineExceeded);
    assert_eq!(all(events).await, [failed]);
    assert_eq!(
        handle.snapshot().ledger.granted,
        4,
        "a peer may still write"
    );
    handle.release(reserved.id);
    idle(&handle).await;
    assert_eq!(steps.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_caller_that_gives_up_loses_nothing() {
    let (handle, _) = start(config(64, 16));
    for cycle in 0..200 {
        let (sender, _events) = mpsc::channel(8);
        let request = spec(Instant::now(), &prompt(cycle, 20), params(50));
        let mut reserving = Box::pin(handle.reserve(request, sender));
        // Polled once: the command is in the inbox, nobody will take the answer.
        tokio::select! {
            biased;
            reserved = &mut reserving => handle.release(reserved.expect("room").id),
            () = std::future::ready(()) => {}
        }
        drop(reserving);
    }
    idle(&handle).await;
}

#[tokio::test]
async fn sch_15_a_refused_slice_or_a_bad_sampler_fails_one_sequence() {
    let (handle, _) = start(config(64, 16));
    let mut outcomes = Vec::new();
    for spoil in [None, Some(POISON), Some(REFUSED), None] {
        let mut text = prompt(1, 20);
        text[9] = spoil.unwrap_or(text[9]);
        let (sender, events) = mpsc::channel(64);
        let request = spec(Instant::now(), &text, params(30));
        handle
            .submit(request, AfterPrompt::Decode, None, sender)
            .await
            .expect("accepted");
        outcomes.push((spoil, text, events));
    }
    for (spoil, text, events) in outcomes {
        let heard = all(events).await;
        let last = heard.last().expect("an end");
        match (spoil, last) {
            (Some(POISON), SequenceEvent::Failed(SequenceError::Logits(_)))
            | (Some(REFUSED), SequenceEvent::Failed(SequenceError::Internal(_))) => {}
            (None, _) => assert_eq!(token_ids(&heard), expected(&text, &params(30), 30, &[])[0]),
            _ => panic!("{spoil:?} ends with {last:?}"),
        }
    }
    idle(&handle).await;
}

#[tokio::test]
async fn a_panic_of_the_engine_ends_the_loop_and_everybody_hears() {
    let settings = config(64, 16);
    let memory = Memory::new(settings.pages, settings.page_size);
    let mut left = 5;
    let engine = Oracle::new(memory, settings.page_size, CONTEXT).on_step(move || {
        left -= 1;
        assert!(left > 0, "scripted panic");
    });
    let handle = spawn(Box::new(engine), settings).expect("starts");
    let request = || spec(Instant::now(), &prompt(1, 20), params(30));
    let (sender, events) = mpsc::channel(64);
    handle
        .submit(request(), AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    let heard = all(events).await;
    timeout(PATIENCE, handle.ended()).await.expect("ended");
    assert!(
        !heard
            .iter()
            .any(|e| matches!(e, SequenceEvent::Done { .. }))
    );
    let (sender, _events) = mpsc::channel(64);
    let refused = handle
        .submit(request(), AfterPrompt::Decode, None, sender)
        .await;
    assert_eq!(refused, Err(SequenceError::Gone));
}

#[tokio::test]
async fn who_waits_while_the_engine_panics_hears_that_the_loop_is_gone() {
    let settings = config(64, 16);
    let memory = Memory::new(settings.pages, settings.page_size);
    let (entered, entering) = std::sync::mpsc::channel();
    let (panic, panics) = std::sync::mpsc::channel::<()>();
    let engine = Oracle::new(memory, settings.page_size, CONTEXT).on_step(move || {
        entered.send(()).expect("the test waits");
        panics.recv_timeout(PATIENCE).expect("told");
        panic!("scripted panic");
    });
    let handle = spawn(Box::new(engine), settings).expect("starts");
    let request = || spec(Instant::now(), &prompt(1, 20), params(30));
    let (sender, grant_events) = mpsc::channel(8);
    let reserved = handle.reserve(request(), sender).await.expect("room");
    let (sender, events) = mpsc::channel(8);
    handle
        .submit(request(), AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    entering.recv_timeout(PATIENCE).expect("a step");

    // The step is on: these wait for its end.
    let (sender, queued_events) = mpsc::channel(8);
    let submitting = handle.submit(request(), AfterPrompt::Decode, None, sender);
    let (sender, refused_events) = mpsc::channel(8);
    let reserving = handle.reserve(request(), sender);
    let landing = handle.land(reserved.id, Vec::new(), vec![0]);
    let telling = async {
        // Polled after the others: their commands are in the inbox.
        panic.send(()).expect("the engine waits");
    };
    let waiting = async { tokio::join!(biased; submitting, reserving, landing, telling) };
    let (submitted, reserved, landed, ()) = timeout(PATIENCE, waiting).await.expect("answers");
    assert_eq!(submitted, Err(SequenceError::Gone));
    assert_eq!(reserved, Err(SequenceError::Gone));
    assert_eq!(landed, Err(SequenceError::Gone));
    timeout(PATIENCE, handle.ended()).await.expect("ended");
    for events in [events, grant_events, queued_events, refused_events] {
        let heard = all(events).await;
        let is_end = |event: &SequenceEvent| matches!(event, SequenceEvent::Done { .. });
        assert!(!heard.iter().any(is_end), "{heard:?}");
    }
}

/// One client of the crowd: reads to the end, reads slowly, leaves, releases, or cancels a choice.
async fn client(handle: StepHandle, n: u64) -> bool {
    let text = prompt(n % 7, 1 + (n % 40) as u32);
    let mut params = sampled(1 + (n % 25) as u32, n);
    params.choices = 1 + (n % 3) as u32;
    let (sender, mut events) = mpsc::channel(1 + (n % 5) as usize);
    let request = spec(Instant::now(), &text, params.clone());
    let id = handle
        .submit(request, AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    if n % 10 == 5 {
        // Gone before the first event, or while it is told.
        return false;
    }
    let mut tokens = Vec::new();
    while let Some(event) = next(&mut events).await {
        match event {
            SequenceEvent::Token(token) => tokens.push(token),
            SequenceEvent::Done { .. } => break,
            SequenceEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
        match n % 10 {
            0 if tokens.len() > 3 => return false,
            1 if tokens.len() > 3 => {
                handle.release(id);
                return false;
            }
            2 => handle.cancel_choice(id, 1),
            3 | 4 => tokio::task::yield_now().await,
            _ => {}
        }
    }
    let reference = expected(&text, &params, params.max_tokens, &[]);
    for (choice, completion) in (0..).zip(&reference) {
        let of_choice = tokens.iter().filter(|token| token.choice == choice);
        let got: Vec<_> = of_choice.map(|token| token.token_id).collect();
        if n % 10 == 2 && choice == 1 {
            assert!(completion.starts_with(&got));
        } else {
            assert_eq!(&got, completion, "client {n}");
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_clients_on_a_small_pool() {
    let mut settings = config(24, 8);
    settings.prefix_cache = true;
    let (handle, _) = start(settings);
    let clients: Vec<_> = (0..400)
        .map(|n| tokio::spawn(client(handle.clone(), n)))
        .collect();
    let mut finished = 0;
    for client in clients {
        finished += u32::from(client.await.expect("no panic"));
    }
    assert!(finished >= 280);
    idle(&handle).await;
    let load = handle.snapshot();
    assert!(
        load.preemptions > 0 && load.prefix_hit_tokens > 0,
        "{load:?}"
    );
}

#[tokio::test]
async fn drain_finishes_what_runs_and_accepts_nothing() {
    let (handle, _) = start(config(64, 16));
    let request = || spec(Instant::now(), &prompt(1, 20), params(100));
    let (sender, events) = mpsc::channel(8);
    handle
        .submit(request(), AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    handle.drain();
    let (sender, _events) = mpsc::channel(8);
    // The note is read with or before the next command.
    let mut refused = handle.reserve(request(), sender.clone()).await;
    if refused.is_ok() {
        refused = handle.reserve(request(), sender).await;
    }
    assert_eq!(refused, Err(SequenceError::Draining));
    assert_eq!(token_ids(&all(events).await).len(), 100);
}

#[tokio::test]
async fn dropping_all_handles_ends_the_loop() {
    let (handle, _) = start(config(64, 16));
    let (sender, events) = mpsc::channel(1000);
    let request = spec(Instant::now(), &prompt(1, 20), params(400));
    let other = handle.clone();
    handle
        .submit(request, AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    drop(handle);
    drop(other);
    all(events).await;
}

#[tokio::test]
async fn a_loop_that_is_a_task_serves_as_one_on_a_thread_does() {
    let settings = config(32, 16);
    let memory = Memory::new(settings.pages, settings.page_size);
    let engine = Oracle::new(memory, settings.page_size, CONTEXT);
    let (handle, step_loop) = step_loop(Box::new(engine), settings).expect("in range");
    let paced = Arc::new(AtomicU64::new(0));
    let tokens = Arc::clone(&paced);
    let running = tokio::spawn(step_loop.run_paced(move |count| {
        tokens.fetch_add(count as u64, Ordering::SeqCst);
        tokio::task::yield_now()
    }));
    let (text, params) = (prompt(1, 40), sampled(20, 5));
    let (sender, events) = mpsc::channel(1);
    let request = spec(Instant::now(), &text, params.clone());
    handle
        .submit(request, AfterPrompt::Decode, None, sender)
        .await
        .expect("accepted");
    let heard = all(events).await;
    assert_eq!(token_ids(&heard), expected(&text, &params, 20, &[])[0]);
    idle(&handle).await;
    assert_eq!(paced.load(Ordering::SeqCst), 40 + 19);
    drop(handle);
    timeout(PATIENCE, running)
        .await
        .expect("it ends in time")
        .expect("it ends well");
}
