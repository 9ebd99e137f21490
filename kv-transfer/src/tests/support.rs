//! Actors for transfer tests: a receiving and a sending side over a tiny random layout.
#![allow(unsafe_code)] // Reads and writes regions as the owner of their pages.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{
    Identity, Incoming, Outcome, PageProgress, Receiver, ReceiverOptions, Reservation, Sender,
    SenderOptions, SharedMemory, Tcp, TransportChoice, host_id, shared_memory,
};
use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};
use baton_proto::domain::{Fingerprint, Grant, PROTOCOL_VERSION, PageSlot};
use baton_proto::ids::{Attempt, Incarnation};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// Longest wait for anything in a test.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} took too long"))
}

pub(super) fn layout(pages: u32) -> KvLayout {
    KvLayout {
        layers: 3,
        kv_heads: 2,
        head_dim: 8,
        page_size: 16,
        dtype: KvDtype::Bf16,
        pages,
    }
}

pub(super) fn fingerprint(layout: &KvLayout) -> Fingerprint {
    Fingerprint {
        protocol_version: PROTOCOL_VERSION,
        weights_digest: [1; 32],
        metadata_digest: [2; 32],
        tokenizer_digest: [3; 32],
        kv_dtype: layout.dtype.name().to_owned(),
        page_size: layout.page_size,
        layers: layout.layers,
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        layout: "test".to_owned(),
        rope: "plain 10000".to_owned(),
        numerics: "test".to_owned(),
    }
}

pub(super) fn identity(layout: &KvLayout, incarnation: u64) -> Identity {
    Identity {
        incarnation: Incarnation(incarnation),
        fingerprint: fingerprint(layout),
        host_id: host_id(),
    }
}

/// A region of any alignment-64 memory, filled and read as the owner of all pages.
pub(super) fn region(layout: &KvLayout) -> Arc<SharedMemory> {
    shared_memory(layout.region_bytes()).expect("memfd")
}

pub(super) fn fill_random(memory: &dyn KvMemory, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = vec![0; memory.len()];
    random.fill_bytes(&mut bytes);
    write(memory, 0, &bytes);
}

pub(super) fn write(memory: &dyn KvMemory, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= memory.len());
    // SAFETY: in bounds; the test owns these pages.
    unsafe {
        let place: NonNull<u8> = memory.base().add(offset);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len());
    }
}

pub(super) fn read(memory: &dyn KvMemory, offset: usize, length: usize) -> Vec<u8> {
    assert!(offset + length <= memory.len());
    // SAFETY: in bounds; the test reads pages that nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(memory.base().add(offset).as_ptr(), length).to_vec() }
}

pub(super) fn piece(memory: &dyn KvMemory, layout: &KvLayout, layer: u32, page: u32) -> Vec<u8> {
    read(
        memory,
        layout.piece_offset(layer, page),
        layout.piece_bytes(),
    )
}

/// The memory of a side with a fault: whoever looks for it panics while it is torn.
#[derive(Debug)]
pub(super) struct Torn {
    pub(super) memory: Arc<SharedMemory>,
    pub(super) is_torn: AtomicBool,
}

// SAFETY: the region is that of `memory`, which keeps the promise.
unsafe impl KvMemory for Torn {
    fn base(&self) -> NonNull<u8> {
        assert!(!self.is_torn.load(Ordering::SeqCst), "the memory is torn");
        self.memory.base()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
}

/// The receiving side.
pub(super) struct ReceivingSide {
    pub(super) receiver: Receiver,
    pub(super) memory: Arc<SharedMemory>,
    pub(super) layout: KvLayout,
    _folder: tempfile::TempDir,
}

pub(super) fn receiver_options(transports: TransportChoice, folder: &Path) -> ReceiverOptions {
    ReceiverOptions {
        transports,
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        socket_dir: folder.to_path_buf(),
        lease: Duration::from_secs(5),
        credit_bytes: 8 << 20,
        quarantine_cap_pages: 64,
        network: Arc::new(Tcp),
    }
}

pub(super) async fn receiving(layout: KvLayout, transports: TransportChoice) -> ReceivingSide {
    receiving_with(layout, transports, 100, |_| {}).await
}

pub(super) async fn receiving_with(
    layout: KvLayout,
    transports: TransportChoice,
    incarnation: u64,
    adjust: impl FnOnce(&mut ReceiverOptions),
) -> ReceivingSide {
    let memory = region(&layout);
    let sound: Arc<dyn KvMemory> = memory.clone();
    receiving_over(layout, (memory, sound), transports, incarnation, adjust).await
}

/// The pool, and what the receiver reads and writes it through.
pub(super) async fn receiving_over(
    layout: KvLayout,
    (memory, access): (Arc<SharedMemory>, Arc<dyn KvMemory>),
    transports: TransportChoice,
    incarnation: u64,
    adjust: impl FnOnce(&mut ReceiverOptions),
) -> ReceivingSide {
    let folder = tempfile::tempdir().expect("folder");
    let mut options = receiver_options(transports, folder.path());
    adjust(&mut options);
    let receiver = Receiver::bind(
        identity(&layout, incarnation),
        layout,
        access,
        Some(memory.clone()),
        options,
    )
    .await
    .expect("bind");
    ReceivingSide {
        receiver,
        memory,
        layout,
        _folder: folder,
    }
}

impl ReceivingSide {
    pub(super) fn open(&self, pages: &[u32], reused_pages: u32) -> (Grant, Incoming) {
        let slots = pages
            .iter()
            .map(|page| PageSlot {
                page: *page,
                generation: 7 + page,
            })
            .collect();
        self.receiver.open(Reservation {
            attempt: Attempt(1),
            slots,
            reused_pages,
        })
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        counter(&self.receiver.counters().snapshot(), name)
    }
}

pub(super) fn counter(snapshot: &[(&'static str, u64)], name: &str) -> u64 {
    let full = format!("kv_transfer_{name}");
    snapshot
        .iter()
        .find(|(known, _)| *known == full)
        .unwrap_or_else(|| panic!("no counter {name}"))
        .1
}

/// The sending side.
pub(super) struct SendingSide {
    pub(super) sender: Sender,
    pub(super) memory: Arc<SharedMemory>,
    pub(super) layout: KvLayout,
}

pub(super) fn sender_options(transports: TransportChoice) -> SenderOptions {
    SenderOptions {
        transports,
        connect_timeout: Duration::from_secs(5),
        progress_timeout: Duration::from_secs(5),
        network: Arc::new(Tcp),
    }
}

pub(super) fn sending(layout: KvLayout, transports: TransportChoice, seed: u64) -> SendingSide {
    sending_as(layout, transports, seed, |_| {})
}

pub(super) fn sending_as(
    layout: KvLayout,
    transports: TransportChoice,
    seed: u64,
    adjust: impl FnOnce(&mut Identity),
) -> SendingSide {
    sending_with(layout, seed, sender_options(transports), adjust)
}

pub(super) fn sending_with(
    layout: KvLayout,
    seed: u64,
    options: SenderOptions,
    adjust: impl FnOnce(&mut Identity),
) -> SendingSide {
    let memory = region(&layout);
    fill_random(&*memory, seed);
    let mut identity = identity(&layout, 200);
    adjust(&mut identity);
    let sender = Sender::new(identity, layout, memory.clone(), options);
    SendingSide {
        sender,
        memory,
        layout,
    }
}

/// The pool, and what the sender reads it through.
pub(super) fn sending_over(
    layout: KvLayout,
    (memory, access): (Arc<SharedMemory>, Arc<dyn KvMemory>),
    seed: u64,
    options: SenderOptions,
) -> SendingSide {
    fill_random(&*memory, seed);
    let sender = Sender::new(identity(&layout, 200), layout, access, options);
    SendingSide {
        sender,
        memory,
        layout,
    }
}

/// Waits until a counter or the like has moved; every look is a turn of the runtime.
pub(super) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    within(what, async {
        while !is() {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    })
    .await;
}

impl SendingSide {
    pub(super) fn progress(&self, prompt_tokens: u32, pages: &[u32]) -> Arc<PageProgress> {
        let pages = pages.iter().map(|page| PageIndex(*page)).collect();
        PageProgress::new(
            self.layout.layers,
            self.layout.page_size,
            prompt_tokens,
            pages,
        )
    }
}

pub(super) fn advance_all(progress: &PageProgress, layout: &KvLayout, tokens: u32) {
    for layer in 0..layout.layers {
        progress.advance(layer, tokens);
    }
}

pub(super) fn assert_same(
    sent: &SendingSide,
    landed: &ReceivingSide,
    local: &[u32],
    granted: &[u32],
    reused: usize,
) {
    for layer in 0..sent.layout.layers {
        for (from, to) in local[reused..].iter().zip(granted) {
            assert_eq!(
                piece(&*sent.memory, &sent.layout, layer, *from),
                piece(&*landed.memory, &landed.layout, layer, *to),
                "layer {layer}, page {from} → {to}"
            );
        }
    }
}

pub(super) fn committed(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Outcome::Committed { payload } => payload,
        other => panic!("not committed: {other:?}"),
    }
}

pub(super) fn failure(outcome: Outcome) -> crate::TransferError {
    match outcome {
        Outcome::Failed(error) => error,
        other => panic!("not failed: {other:?}"),
    }
}
