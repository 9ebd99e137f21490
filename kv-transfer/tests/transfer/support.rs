//! Actors for transfer tests: a receiving and a sending side over a tiny random layout.
#![allow(unreachable_pub)] // One test binary; its modules share this one.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};
use baton_kv_transfer::{
    Identity, Incoming, Outcome, PageProgress, Receiver, ReceiverOptions, Reservation, Sender,
    SenderOptions, SharedMemory, TransportChoice, host_id, shared_memory,
};
use baton_proto::domain::{Fingerprint, Grant, PROTOCOL_VERSION, PageSlot};
use baton_proto::ids::{Attempt, Incarnation};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// Longest wait for anything in a test.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} took too long"))
}

pub fn layout(pages: u32) -> KvLayout {
    KvLayout {
        layers: 3,
        kv_heads: 2,
        head_dim: 8,
        page_size: 16,
        dtype: KvDtype::Bf16,
        pages,
    }
}

pub fn fingerprint(layout: &KvLayout) -> Fingerprint {
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

pub fn identity(layout: &KvLayout, incarnation: u64) -> Identity {
    Identity {
        incarnation: Incarnation(incarnation),
        fingerprint: fingerprint(layout),
        host_id: host_id(),
    }
}

/// A region of any alignment-64 memory, filled and read as the owner of all pages.
pub fn region(layout: &KvLayout) -> Arc<SharedMemory> {
    shared_memory(layout.region_bytes()).expect("memfd")
}

pub fn fill_random(memory: &dyn KvMemory, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = vec![0; memory.len()];
    random.fill_bytes(&mut bytes);
    write(memory, 0, &bytes);
}

#[allow(unsafe_code)]
pub fn write(memory: &dyn KvMemory, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= memory.len());
    // SAFETY: in bounds; the test owns these pages.
    unsafe {
        let place: NonNull<u8> = memory.base().add(offset);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len());
    }
}

#[allow(unsafe_code)]
pub fn read(memory: &dyn KvMemory, offset: usize, length: usize) -> Vec<u8> {
    assert!(offset + length <= memory.len());
    // SAFETY: in bounds; the test reads pages that nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(memory.base().add(offset).as_ptr(), length).to_vec() }
}

pub fn piece(memory: &dyn KvMemory, layout: &KvLayout, layer: u32, page: u32) -> Vec<u8> {
    read(
        memory,
        layout.piece_offset(layer, page),
        layout.piece_bytes(),
    )
}

/// The receiving side.
pub struct ReceivingSide {
    pub receiver: Receiver,
    pub memory: Arc<SharedMemory>,
    pub layout: KvLayout,
    _folder: tempfile::TempDir,
}

pub fn receiver_options(transports: TransportChoice, folder: &Path) -> ReceiverOptions {
    ReceiverOptions {
        transports,
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        socket_dir: folder.to_path_buf(),
        lease: Duration::from_secs(5),
        credit_bytes: 8 << 20,
        quarantine_cap_pages: 64,
    }
}

pub async fn receiving(layout: KvLayout, transports: TransportChoice) -> ReceivingSide {
    receiving_with(layout, transports, 100, |_| {}).await
}

pub async fn receiving_with(
    layout: KvLayout,
    transports: TransportChoice,
    incarnation: u64,
    adjust: impl FnOnce(&mut ReceiverOptions),
) -> ReceivingSide {
    let folder = tempfile::tempdir().expect("folder");
    let memory = region(&layout);
    let mut options = receiver_options(transports, folder.path());
    adjust(&mut options);
    let receiver = Receiver::bind(
        identity(&layout, incarnation),
        layout,
        memory.clone(),
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
    pub fn open(&self, pages: &[u32], reused_pages: u32) -> (Grant, Incoming) {
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

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.receiver.counters().snapshot(), name)
    }
}

pub fn counter(snapshot: &[(&'static str, u64)], name: &str) -> u64 {
    let full = format!("kv_transfer_{name}");
    snapshot
        .iter()
        .find(|(known, _)| *known == full)
        .unwrap_or_else(|| panic!("no counter {name}"))
        .1
}

/// The sending side.
pub struct SendingSide {
    pub sender: Sender,
    pub memory: Arc<SharedMemory>,
    pub layout: KvLayout,
}

pub fn sender_options(transports: TransportChoice) -> SenderOptions {
    SenderOptions {
        transports,
        connect_timeout: Duration::from_secs(5),
        progress_timeout: Duration::from_secs(5),
    }
}

pub fn sending(layout: KvLayout, transports: TransportChoice, seed: u64) -> SendingSide {
    let memory = region(&layout);
    fill_random(&*memory, seed);
    let sender = Sender::new(
        identity(&layout, 200),
        layout,
        memory.clone(),
        sender_options(transports),
    );
    SendingSide {
        sender,
        memory,
        layout,
    }
}

impl SendingSide {
    pub fn progress(&self, prompt_tokens: u32, pages: &[u32]) -> Arc<PageProgress> {
        let pages = pages.iter().map(|page| PageIndex(*page)).collect();
        PageProgress::new(
            self.layout.layers,
            self.layout.page_size,
            prompt_tokens,
            pages,
        )
    }
}

pub fn advance_all(progress: &PageProgress, layout: &KvLayout, tokens: u32) {
    for layer in 0..layout.layers {
        progress.advance(layer, tokens);
    }
}

pub fn assert_same(
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

pub fn committed(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Outcome::Committed { payload } => payload,
        other => panic!("not committed: {other:?}"),
    }
}

pub fn failure(outcome: Outcome) -> baton_kv_transfer::TransferError {
    match outcome {
        Outcome::Failed(error) => error,
        other => panic!("not failed: {other:?}"),
    }
}
