//! The engine's own compute threads: run numbered tasks on all of them, then go on.
//!
//! Tasks are claimed one by one from a shared counter, so a thread that the system has descheduled
//! holds up no task that it has not begun. Waiting threads spin briefly, then sleep. Nothing here
//! knows what the tasks compute.
#![allow(unsafe_code)] // A borrowed closure is lent to the threads for the length of one call.

use std::{
    cell::UnsafeCell,
    ptr,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
        },
    },
    thread::{self, JoinHandle, ThreadId},
};

use crate::EngineError;

/// Rounds of spinning before a thread sleeps: some tens of microseconds, longer than any gap
/// between two operations of a step and far shorter than a scheduling quantum.
const SPIN_ROUNDS: u32 = 2_000;

/// Most tasks of one `run`; the claim counter has 32 bits.
const MAX_TASKS: usize = 1 << 30;

/// A team of `threads` threads, the calling one included.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    cpus: Vec<usize>,
    /// The calling thread that was pinned last.
    pinned: Option<ThreadId>,
}

type Call = unsafe fn(*const (), usize, usize);

/// What the threads share. `claim` packs the number of the current run (high half) and how many of
/// its tasks nobody has claimed (low half), so that one comparison decides whether a thread, however
/// late it comes, takes a task of the run it knows.
struct Shared {
    claim: AtomicU64,
    tasks: AtomicU32,
    data: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// Tasks of the current run that have ended.
    ended: AtomicU32,
    /// Some task of the current run panicked.
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
            claim: AtomicU64::new(0),
            tasks: AtomicU32::new(0),
            data: AtomicPtr::new(ptr::null_mut()),
            call: AtomicPtr::new(ptr::null_mut()),
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

    /// Runs `body(thread, task)` for every task in `0..tasks`, each exactly once, on any thread and
    /// in any order; returns when all have ended. `thread` is below [`Self::count`] and never used
    /// by two tasks at the same time.
    ///
    /// # Panics
    /// If a task panics.
    pub(crate) fn run<F: Fn(usize, usize) + Sync>(&mut self, tasks: usize, body: F) {
        assert!(tasks <= MAX_TASKS, "{tasks} tasks exceed {MAX_TASKS}");
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|task| body(0, task));
            return;
        }
        let shared = &*self.shared;
        let run = shared.publish(tasks as u32, &body);
        shared.work_on(run, 0);
        shared.wait_until_ended(tasks as u32);
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
            // A worker's panic was already reported by `run`.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Makes `body` the current run and returns its number.
    fn publish<F: Fn(usize, usize) + Sync>(&self, tasks: u32, body: &F) -> u32 {
        unsafe fn call<F: Fn(usize, usize) + Sync>(data: *const (), thread: usize, task: usize) {
            // SAFETY: `data` is the `body` of the run whose task was claimed.
            let body = unsafe { &*data.cast::<F>() };
            body(thread, task);
        }
        let run = ((self.claim.load(Relaxed) >> 32) as u32).wrapping_add(1);
        // Every task of the previous run has ended and none is left to claim, so nobody reads or
        // writes these four.
        self.ended.store(0, Relaxed);
        self.tasks.store(tasks, Relaxed);
        self.data
            .store(ptr::from_ref(body).cast_mut().cast(), Relaxed);
        self.call.store(call::<F> as Call as *mut (), Relaxed);
        self.claim
            .store(u64::from(run) << 32 | u64::from(tasks), SeqCst);
        if self.sleeping.load(SeqCst) > 0 {
            drop(self.lock.lock());
            self.work.notify_all();
        }
        run
    }

    /// Claims and runs tasks of `run` until none is left or another run has begun.
    fn work_on(&self, run: u32, thread: usize) {
        let mut claim = self.claim.load(Acquire);
        while (claim >> 32) as u32 == run && claim as u32 > 0 {
            let claimed = self
                .claim
                .compare_exchange_weak(claim, claim - 1, AcqRel, Acquire);
            if let Err(now) = claimed {
                claim = now;
                continue;
            }
            // The caller waits for this task before it publishes anything else.
            let tasks = self.tasks.load(Relaxed);
            self.run_task(thread, (tasks - claim as u32) as usize);
            let last = self.ended.fetch_add(1, SeqCst) + 1 == tasks;
            if last && self.caller_sleeps.load(SeqCst) {
                drop(self.lock.lock());
                self.done.notify_one();
            }
            claim = self.claim.load(Acquire);
        }
    }

    /// Runs a task that this thread has claimed.
    fn run_task(&self, thread: usize, task: usize) {
        let (data, call) = (self.data.load(Relaxed), self.call.load(Relaxed));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: `publish` set both before the claim could succeed and for a body that
            // outlives this task, as `run` waits for `ended`.
            unsafe {
                let call: Call = std::mem::transmute::<*mut (), Call>(call);
                call(data, thread, task);
            }
        }));
        if outcome.is_err() {
            self.panicked.store(true, Relaxed);
        }
    }

    fn wait_until_ended(&self, tasks: u32) {
        if spin(|| self.ended.load(Acquire) == tasks) {
            return;
        }
        let mut guard = self.lock.lock().expect("no holder panics");
        self.caller_sleeps.store(true, SeqCst);
        while self.ended.load(SeqCst) != tasks {
            guard = self.done.wait(guard).expect("no holder panics");
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// A worker's life: wait for a run it has not seen, work on it, repeat.
    fn serve(&self, thread: usize) {
        let mut seen = 0_u32;
        loop {
            let changed = || (self.claim.load(Acquire) >> 32) as u32 != seen;
            if !spin(|| changed() || self.stop.load(Relaxed)) {
                let mut guard = self.lock.lock().expect("no holder panics");
                self.sleeping.fetch_add(1, SeqCst);
                while (self.claim.load(SeqCst) >> 32) as u32 == seen && !self.stop.load(SeqCst) {
                    guard = self.work.wait(guard).expect("no holder panics");
                }
                self.sleeping.fetch_sub(1, SeqCst);
            }
            if self.stop.load(SeqCst) {
                return;
            }
            seen = (self.claim.load(Acquire) >> 32) as u32;
            self.work_on(seen, thread);
        }
    }
}

/// One value for each thread of a team.
pub(crate) struct PerThread<T>(Vec<UnsafeCell<T>>);

// SAFETY: `get`'s callers use only their own thread's value, so values move between threads at most.
unsafe impl<T: Send> Sync for PerThread<T> {}

impl<T> PerThread<T> {
    /// `threads` values.
    pub(crate) fn new(threads: usize, make: impl Fn() -> T) -> Self {
        Self((0..threads).map(|_| UnsafeCell::new(make())).collect())
    }

    /// The value of `thread`.
    ///
    /// # Safety
    /// `thread` is the number that [`Threads::run`] gave the running task, and the value is not
    /// borrowed twice by it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self, thread: usize) -> &mut T {
        // SAFETY: no other task runs with this number meanwhile.
        unsafe { &mut *self.0[thread].get() }
    }
}

/// Whether `ready` came true within the spinning time.
fn spin(ready: impl Fn() -> bool) -> bool {
    for _ in 0..SPIN_ROUNDS {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

#[cfg(target_os = "linux")]
fn pin(cpu: usize) -> Result<(), EngineError> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let refused = |source| EngineError::System {
        what: format!("pinning a thread to CPU {cpu}"),
        source,
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| refused(error.into()))
}

#[cfg(not(target_os = "linux"))]
fn pin(_cpu: usize) -> Result<(), EngineError> {
    Ok(())
}
#[cfg(test)]
mod tests;
