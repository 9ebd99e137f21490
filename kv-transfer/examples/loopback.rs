//! Throughput of whole transfers on one machine, over shm and tcp.
//!
//! `cargo run --release -p baton-kv-transfer --example loopback [rounds] [chunk tokens]`
//!
//! A prompt of 2,048 tokens in the shape of SmolLM2-135M (30 layers, 12 KiB pieces, 45 MiB) goes from
//! one side of this process to the other. Reported are the median of the payload rate from the first
//! byte to `CommitAck`, and processor time of the whole process per gigabyte. "at once": everything is
//! ready before the transfer begins. "by layer": pages become ready layer by layer and chunk by chunk,
//! as fast as they are taken. "bare" is the floor measured in the same run: a copy of the same bytes,
//! and the same bytes through a tokio socket with no frames, checksums or pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};
use baton_kv_transfer::{
    Identity, Outcome, PageProgress, Receiver, ReceiverOptions, Reservation, Sender, SenderOptions,
    Tcp, TransportChoice, host_id, shared_memory,
};
use baton_proto::domain::{Fingerprint, PROTOCOL_VERSION, PageSlot};
use baton_proto::ids::{Attempt, Incarnation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PROMPT_TOKENS: u32 = 2048;
const PAGES: u32 = 256;

fn layout() -> KvLayout {
    KvLayout {
        layers: 30,
        kv_heads: 3,
        head_dim: 64,
        page_size: 16,
        dtype: KvDtype::Bf16,
        pages: PAGES,
    }
}

fn identity(incarnation: u64) -> Identity {
    let layout = layout();
    let fingerprint = Fingerprint {
        protocol_version: PROTOCOL_VERSION,
        weights_digest: [0; 32],
        metadata_digest: [0; 32],
        tokenizer_digest: [0; 32],
        kv_dtype: layout.dtype.name().to_owned(),
        page_size: layout.page_size,
        layers: layout.layers,
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        layout: "loopback".to_owned(),
        rope: "none".to_owned(),
        numerics: "none".to_owned(),
    };
    Identity {
        incarnation: Incarnation(incarnation),
        fingerprint,
        host_id: host_id(),
    }
}

struct Sides {
    receiver: Receiver,
    sender: Sender,
}

async fn sides(transports: TransportChoice, folder: &std::path::Path) -> Sides {
    let timeout = Duration::from_secs(10);
    let (source, target) = (
        shared_memory(layout().region_bytes()).expect("source pool"),
        shared_memory(layout().region_bytes()).expect("target pool"),
    );
    let memory: Arc<dyn KvMemory> = target.clone();
    let options = ReceiverOptions {
        transports,
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        socket_dir: folder.to_path_buf(),
        lease: timeout,
        credit_bytes: 16 << 20,
        quarantine_cap_pages: PAGES,
        network: Arc::new(Tcp),
    };
    let receiver = Receiver::bind(identity(1), layout(), memory, Some(target), options)
        .await
        .expect("bind");
    let options = SenderOptions {
        transports,
        connect_timeout: timeout,
        progress_timeout: timeout,
        network: Arc::new(Tcp),
    };
    Sides {
        receiver,
        sender: Sender::new(identity(2), layout(), source, options),
    }
}

impl Sides {
    /// One transfer; returns gigabytes per second.
    async fn transfer(&self, chunk: u32, fragment: u32) -> f64 {
        let count = layout().pages_for(PROMPT_TOKENS);
        // Runs of `fragment` adjacent pages at the receiver.
        let slots = (0..count).map(|at| (at / fragment) * (fragment + 1) + at % fragment);
        let slots = slots
            .map(|page| PageSlot {
                page: page % PAGES,
                generation: 1,
            })
            .collect();
        let reservation = Reservation {
            attempt: Attempt(1),
            slots,
            reused_pages: 0,
        };
        let (grant, mut incoming) = self.receiver.open(reservation);
        let pages = (0..count).map(PageIndex).collect();
        let progress = PageProgress::new(layout().layers, 16, PROMPT_TOKENS, pages);
        let outgoing = self.sender.begin(grant, Arc::clone(&progress));
        let mut tokens = 0;
        while tokens < PROMPT_TOKENS {
            tokens = (tokens + chunk).min(PROMPT_TOKENS);
            for layer in 0..layout().layers {
                progress.advance(layer, tokens);
                if chunk < PROMPT_TOKENS {
                    tokio::task::yield_now().await;
                }
            }
        }
        progress.finish();
        let stats = outgoing.commit(Vec::new()).await.expect("commit");
        assert!(matches!(
            incoming.outcome().await,
            Outcome::Committed { .. }
        ));
        stats.bytes as f64 / 1e9 / stats.elapsed.as_secs_f64()
    }
}

fn processor_seconds() -> f64 {
    // Fields 14 and 15 of /proc/self/stat, in clock ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}

fn payload_bytes() -> usize {
    layout().page_bytes() * layout().pages_for(PROMPT_TOKENS) as usize
}

/// Processor time of a series of transfers.
struct Cost {
    started: f64,
}

impl Cost {
    fn start() -> Self {
        Self {
            started: processor_seconds(),
        }
    }
    fn report(self, name: &str, mut rates: Vec<f64>) {
        rates.sort_by(f64::total_cmp);
        let gigabytes = (rates.len() * payload_bytes()) as f64 / 1e9;
        let processor = (processor_seconds() - self.started) / gigabytes;
        let median = rates[rates.len() / 2];
        println!("{name}: {median:.1} GB/s, {processor:.2} core-seconds per GB");
    }
}

fn rate(started: Instant) -> f64 {
    payload_bytes() as f64 / 1e9 / started.elapsed().as_secs_f64()
}

fn bare_copy(source: &[u8], target: &mut [u8]) -> f64 {
    let started = Instant::now();
    for (to, from) in target.chunks_mut(256 << 10).zip(source.chunks(256 << 10)) {
        to.copy_from_slice(from);
    }
    rate(started)
}

async fn bare_socket(source: &[u8], mut target: Vec<u8>) -> (f64, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let mut near = TcpStream::connect(listener.local_addr().expect("address"))
        .await
        .expect("connect");
    let (mut far, _) = listener.accept().await.expect("accept");
    let started = Instant::now();
    let read = tokio::spawn(async move {
        for part in target.chunks_mut(256 << 10) {
            far.read_exact(part).await.expect("read");
        }
        target
    });
    for part in source.chunks(1 << 20) {
        near.write_all(part).await.expect("write");
    }
    let target = read.await.expect("reader");
    (rate(started), target)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let figures: Vec<u32> = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let rounds = figures
        .first()
        .map_or(40, |rounds| (*rounds).max(1) as usize);
    let chunk = figures.get(1).map_or(256, |tokens| (*tokens).max(1));
    let folder = std::env::temp_dir().join(format!("baton-loopback-{}", std::process::id()));
    for transports in [TransportChoice::Shm, TransportChoice::Tcp] {
        let sides = sides(transports, &folder).await;
        sides.transfer(PROMPT_TOKENS, PAGES).await;
        let cases = [
            ("at once", PROMPT_TOKENS, PAGES),
            ("by layer", chunk, PAGES),
            ("at once, runs of 4 pages", PROMPT_TOKENS, 4),
            ("at once, single pages", PROMPT_TOKENS, 1),
        ];
        for (name, chunk, fragment) in cases {
            let cost = Cost::start();
            let mut rates = Vec::new();
            for _ in 0..rounds {
                rates.push(sides.transfer(chunk, fragment).await);
            }
            cost.report(&format!("{transports:?} {name}"), rates);
        }
    }
    let (source, mut target) = (vec![1u8; payload_bytes()], vec![2u8; payload_bytes()]);
    let cost = Cost::start();
    cost.report(
        "bare copy",
        (0..rounds)
            .map(|_| bare_copy(&source, &mut target))
            .collect(),
    );
    let (cost, mut rates) = (Cost::start(), Vec::new());
    for _ in 0..rounds {
        let measured;
        (measured, target) = bare_socket(&source, target).await;
        rates.push(measured);
    }
    cost.report("bare tcp", rates);
    let _ = std::fs::remove_dir_all(&folder);
}
