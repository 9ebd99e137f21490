//! The engine's own compute threads: run numbered items on all of them, then go on.
//!
//! Each thread has a part of the items and takes bites from its front, so that it reads what belongs to
//! them in one stream; a thread that has finished takes bites from the ends of the others' parts, so that
//! one that the system has descheduled holds up no more than the bite that it has begun. Waiting threads
//! fetch what the next run reads first, spin briefly, then sleep. Nothing here knows what the items are.
#![allow(unsafe_code)] // A borrowed closure is lent to the threads for the length of one call.

mod ahead;
mod part;
mod per_thread;
mod pin;
#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    ptr,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed, SeqCst},
        },
    },
    thread::{self, JoinHandle, ThreadId},
};

use ahead::Ahead;
use part::Part;
pub(crate) use per_thread::PerThread;
use pin::pin;

use crate::EngineError;

/// Rounds of spinning before a thread sleeps: some tens of microseconds, longer than any gap
/// between two operations of a step and far shorter than a scheduling quantum.
const SPIN_ROUNDS: u32 = 2_000;

/// Most items of one run; parts have 32-bit ends.
const MAX_ITEMS: usize = 1 << 30;

/// A team of `threads` threads, the calling one included.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    cpus: Vec<usize>,
    /// The calling thread that was pinned last.
    pinned: Option<ThreadId>,
}

type Call = unsafe fn(*const (), usize, Range<usize>);

/// What the threads share. Whoever has taken a bite knows that its run cannot end before the bite has,
/// and so may read what the run has published, however late it came.
struct Shared {
    /// Number of the current run; workers wait for it to change.
    run: AtomicU32,
    /// Of each thread: the items of its part that nobody has taken.
    parts: Box<[Part]>,
    /// Most items of a bite.
    most: AtomicUsize,
    items: AtomicU32,
    data: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// What is read next.
    ahead: Ahead,
    /// Items of the current run that have ended.
    ended: AtomicU32,
    /// Some item of the current run panicked.
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers that sleep, or are about to.
    sleeping: AtomicU32,
    /// The caller sleeps, or is about to.
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    work: Condvar,
    done: Condvar,
}

impl Threads {
    /// Starts `threads - 1` workers.
    ///
    /// # Errors
    /// The system refuses a thread, or a CPU that it should be pinned to.
    pub(crate) fn new(threads: usize, cpus: &[usize]) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            run: AtomicU32::new(0),
            parts: (0..threads).map(|_| Part::default()).collect(),
            most: AtomicUsize::new(1),
            items: AtomicU32::new(0),
            data: AtomicPtr::new(ptr::null_mut()),
            call: AtomicPtr::new(ptr::null_mut()),
            ahead: Ahead::default(),
            ended: AtomicU32::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleeping: AtomicU32::new(0),
            caller_sleeps: AtomicBool::new(false),
            lock: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut team = Self {
            shared,
            workers: Vec::new(),
            cpus: cpus.to_vec(),
            pinned: None,
        };
        let (report, reports) = std::sync::mpsc::channel();
        for worker in 1..threads {
            let shared = team.shared.clone();
            let cpu = (!cpus.is_empty()).then(|| cpus[worker % cpus.len()]);
            let report = report.clone();
            let handle = thread::Builder::new()
                .name(format!("baton-compute-{worker}"))
                .spawn(move || {
                    let pinned = cpu.map_or(Ok(()), pin);
                    let failed = pinned.is_err();
                    // The receiver waits for exactly one report of each worker.
                    let _ = report.send(pinned);
                    drop(report);
                    if !failed {
                        shared.serve(worker);
                    }
                })
                .map_err(|source| EngineError::System {
                    what: format!("starting compute thread {worker} of {threads}"),
                    source,
                })?;
            team.workers.push(handle);
        }
        drop(report);
        while let Ok(pinned) = reports.recv() {
            pinned?;
        }
        Ok(team)
    }

    /// Threads of the team, the calling one included.
    pub(crate) fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Pins the calling thread to the team's first CPU, once.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn adopt_caller(&mut self) -> Result<(), EngineError> {
        let Some(&cpu) = self.cpus.first() else {
            return Ok(());
        };
        let caller = thread::current().id();
        if self.pinned != Some(caller) {
            pin(cpu)?;
            self.pinned = Some(caller);
        }
        Ok(())
    }

    /// Says that the run after the next one reads `memory`, each thread an equal part of it: threads that
    /// wait meanwhile fetch the first lines of theirs.
    pub(crate) fn announce(&mut self, memory: &[u8]) {
        self.shared.ahead.set(memory);
    }

    /// Runs `body(thread, task)` for every task in `0..tasks`, each exactly once; returns when all have ended.
    /// Each thread begins with an equal share of neighbouring tasks, in ascending order: threads that all
    /// took from one place would wait for its cache line. `thread` is below [`Self::count`] and
    /// never used by two tasks at the same time.
    ///
    /// # Panics
    /// If a task panics.
    pub(crate) fn run<F: Fn(usize, usize) + Sync>(&mut self, tasks: usize, body: F) {
        let count = self.count();
        let share = |thread| tasks * thread / count..tasks * (thread + 1) / count;
        self.run_parts(tasks, 1, share, |thread, range| {
            range.for_each(|task| body(thread, task));
        });
    }

    /// Runs `body(thread, bite)` for ranges that together are `0..items`, each item exactly once;
    /// returns when all have ended. `part(thread)` is the range that a thread begins with; all together
    /// are `0..items`. A bite is three quarters of what is left of a part, at most `most`
    /// items; it costs about as much as an item of a hundred nanoseconds.
    ///
    /// # Panics
    /// If a bite panics, or if there are too many items.
    pub(crate) fn run_parts<F: Fn(usize, Range<usize>) + Sync>(
        &mut self,
        items: usize,
        most: usize,
        part: impl Fn(usize) -> Range<usize>,
        body: F,
    ) {
        assert!(items <= MAX_ITEMS, "{items} items exceed {MAX_ITEMS}");
        if self.workers.is_empty() || items <= 1 {
            if items > 0 {
                body(0, 0..items);
            }
            return;
        }
        let shared = &*self.shared;
        shared.publish(items as u32, most, part, &body);
        shared.work(0);
        shared.wait_until_ended(items as u32);
        assert!(
            !shared.panicked.swap(false, Relaxed),
            "a compute task panicked"
        );
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(self.shared.lock.lock());
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker's panic was already reported by `run_parts`.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Makes `body` over `items` items the current run.
    fn publish<F: Fn(usize, Range<usize>) + Sync>(
        &self,
        items: u32,
        most: usize,
        part: impl Fn(usize) -> Range<usize>,
        body: &F,
    ) {
        unsafe fn call<F: Fn(usize, Range<usize>) + Sync>(
            data: *const (),
            thread: usize,
            bite: Range<usize>,
        ) {
            // SAFETY: `data` is the `body` of the run that the bite was taken from.
            let body = unsafe { &*data.cast::<F>() };
            body(thread, bite);
        }
        // Every item of the previous run has ended and none is left to take, so nobody reads or
        // writes these but a late thread that still looks for a bite; it may see either `most`.
        self.ended.store(0, Relaxed);
        self.items.store(items, Relaxed);
        self.data
            .store(ptr::from_ref(body).cast_mut().cast(), Relaxed);
        self.call.store(call::<F> as Call as *mut (), Relaxed);
        self.most.store(most, Relaxed);
        for (thread, own) in self.parts.iter().enumerate() {
            own.fill(part(thread));
        }
        self.run.fetch_add(1, SeqCst);
        if self.sleeping.load(SeqCst) > 0 {
            drop(self.lock.lock());
            self.work.notify_all();
        }
    }

    /// Takes and runs bites of the current run, of the thread's own part first, until none is left.
    fn work(&self, thread: usize) {
        let most = self.most.load(Relaxed);
        let (threads, mut ended) = (self.parts.len(), 0);
        for other in 0..threads {
            let own = other == 0;
            // Single items are tasks of unequal length, which begin in their order.
            let from_front = own || most == 1;
            let part = &self.parts[(thread + other) % threads];
            while let Some(bite) = part.take(most, from_front) {
                ended += bite.len() as u32;
                self.run_bite(thread, bite);
            }
        }
        if ended == 0 {
            return;
        }
        // The caller has waited for these items before it publishes anything else.
        let items = self.items.load(Relaxed);
        let last = self.ended.fetch_add(ended, SeqCst) + ended == items;
        if last && self.caller_sleeps.load(SeqCst) {
            drop(self.lock.lock());
            self.done.notify_one();
        }
    }

    /// Runs a bite that this thread has taken.
    fn run_bite(&self, thread: usize, bite: Range<usize>) {
        // The caller waits for this bite before it publishes anything else.
        let (data, call) = (self.data.load(Relaxed), self.call.load(Relaxed));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: `publish` set both before the bite could be taken and for a body that outlives
            // it, as `run_parts` waits for `ended`.
            unsafe {
                let call: Call = std::mem::transmute::<*mut (), Call>(call);
                call(data, thread, bite);
            }
        }));
        if outcome.is_err() {
            self.panicked.store(true, Relaxed);
        }
    }

    fn wait_until_ended(&self, items: u32) {
        if self.spin(0, || self.ended.load(Acquire) == items) {
            return;
        }
        let mut guard = self.lock.lock().expect("no holder panics");
        self.caller_sleeps.store(true, SeqCst);
        while self.ended.load(SeqCst) != items {
            guard = self.done.wait(guard).expect("no holder panics");
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// A worker's life: wait for a run it has not seen, work on it, repeat.
    fn serve(&self, thread: usize) {
        let mut seen = 0;
        loop {
            let ready = || self.run.load(Acquire) != seen || self.stop.load(Relaxed);
            if !self.spin(thread, ready) {
                let mut guard = self.lock.lock().expect("no holder panics");
                self.sleeping.fetch_add(1, SeqCst);
                while self.run.load(SeqCst) == seen && !self.stop.load(SeqCst) {
                    guard = self.work.wait(guard).expect("no holder panics");
                }
                self.sleeping.fetch_sub(1, SeqCst);
            }
            if self.stop.load(SeqCst) {
                return;
            }
            seen = self.run.load(Acquire);
            self.work(thread);
        }
    }

    /// Whether `ready` came true within the spinning time, in which `thread` fetches what it reads next.
    fn spin(&self, thread: usize, ready: impl Fn() -> bool) -> bool {
        let mut lines = self.ahead.lines(thread, self.parts.len());
        for _ in 0..SPIN_ROUNDS {
            if ready() {
                return true;
            }
            if !lines.fetch_some() {
                std::hint::spin_loop();
            }
        }
        false
    }
}
