//! An engine whose steps a test lets through one by one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use baton_engine::{Batch, EngineError, Logits, StepEngine};
use baton_sampling::Sampler;
use tokio::sync::watch;

use super::soon;

/// Lets steps through; open at first.
pub(crate) struct Gate {
    allowed: Mutex<u64>,
    changed: Condvar,
    /// Steps that have arrived at the gate, and those that are through.
    steps: watch::Sender<(u64, u64)>,
    /// Whether steps panic.
    broken: AtomicBool,
}

impl Gate {
    pub(crate) fn open() -> Arc<Self> {
        Self::with(u64::MAX)
    }

    pub(crate) fn closed() -> Arc<Self> {
        Self::with(0)
    }

    fn with(allowed: u64) -> Arc<Self> {
        let (allowed, changed) = (Mutex::new(allowed), Condvar::new());
        Arc::new(Self {
            allowed,
            changed,
            steps: watch::Sender::new((0, 0)),
            broken: AtomicBool::new(false),
        })
    }

    /// Lets every step through from now on.
    pub(crate) fn let_all(&self) {
        *self.allowed.lock().unwrap() = u64::MAX;
        self.changed.notify_all();
    }

    /// Lets `steps` more steps through.
    pub(crate) fn let_some(&self, steps: u64) {
        let mut allowed = self.allowed.lock().unwrap();
        *allowed = allowed.saturating_add(steps);
        self.changed.notify_all();
    }

    /// Holds every further step.
    pub(crate) fn close(&self) {
        *self.allowed.lock().unwrap() = 0;
    }

    /// The next step panics.
    pub(crate) fn break_engine(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Steps that have arrived so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.steps.borrow().0
    }

    /// Waits until `steps` steps have arrived since the start.
    pub(crate) async fn until_arrived(&self, steps: u64) {
        self.until("a step at the gate", |(arrived, _)| arrived >= steps)
            .await;
    }

    /// Closes and waits until a step stands at the gate.
    pub(crate) async fn hold(&self) {
        self.close();
        self.until("a step held at the gate", |(arrived, through)| {
            arrived > through
        })
        .await;
    }

    async fn until(&self, what: &str, condition: impl Fn((u64, u64)) -> bool) {
        let mut steps = self.steps.subscribe();
        soon(what, steps.wait_for(|&steps| condition(steps)))
            .await
            .unwrap();
    }

    pub(crate) fn pass(&self) {
        self.steps.send_modify(|(arrived, _)| *arrived += 1);
        let mut allowed = self.allowed.lock().unwrap();
        while *allowed == 0 {
            allowed = self.changed.wait(allowed).unwrap();
        }
        if *allowed != u64::MAX {
            *allowed -= 1;
        }
        // Under the lock: whoever has closed the gate sees who is through.
        self.steps.send_modify(|(_, through)| *through += 1);
    }
}

/// An engine behind a gate.
pub(crate) struct Gated {
    pub(crate) engine: Box<dyn StepEngine>,
    pub(crate) gate: Arc<Gate>,
}

impl StepEngine for Gated {
    fn vocabulary(&self) -> usize {
        self.engine.vocabulary()
    }

    fn context_length(&self) -> u32 {
        self.engine.context_length()
    }

    fn sampler(&self) -> &'static dyn Sampler {
        self.engine.sampler()
    }

    fn step(
        &mut self,
        batch: &Batch<'_>,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Logits<'_>, EngineError> {
        let broken = self.gate.broken.load(Ordering::Relaxed);
        assert!(!broken, "an engine that a test has broken");
        self.gate.pass();
        self.engine.step(batch, on_layer)
    }
}
