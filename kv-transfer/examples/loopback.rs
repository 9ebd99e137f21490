//! Throughput of whole transfers on one machine, over shm and tcp.
//!
//! `cargo run --release -p baton-kv-transfer --example loopback [rounds] [chunk tokens]`
//!
//! A prompt of 2,048 tokens in the shape of SmolLM2-135M (30 layers, 12 KiB pieces, 45 MiB) goes from
//! one side of this process to the other. Reported are the median of the payload rate from the first
//! byte to CommitAck, and processor time of the whole process per gigabyte. "at once": everything is
//! ready before the transfer begins. "by layer": pages become ready layer by layer and chunk by chunk,
//! as fast as they are taken.

use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::{KvDtype, KvLayout, KvMemory, PageIndex};
use baton_kv_transfer::{
    Identity, Outcome, PageProgress, Receiver, ReceiverOptions, Reservation, Sender, SenderOptions,
    TransportChoice, host_id, shared_memory,
};
use baton_proto::domain::{Fingerprint, PROTOCOL_VERSION, PageSlot};
use baton_proto::ids::{Attempt, Incarnation};

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
    };
    let receiver = Receiver::bind(identity(1), layout(), memory, Some(target), options)
        .await
        .expect("bind");
    let options = SenderOptions {
        transports,
        connect_timeout: timeout,
        progress_timeout: timeout,
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
            let started = processor_seconds();
            let mut rates = Vec::new();
            for _ in 0..rounds {
                rates.push(sides.transfer(chunk, fragment).await);
            }
            rates.sort_by(f64::total_cmp);
            let gigabytes = (rounds * layout().page_bytes() * 128) as f64 / 1e9;
            let processor = (processor_seconds() - started) / gigabytes;
            let median = rates[rounds / 2];
            println!("{transports:?} {name}: {median:.1} GB/s, {processor:.2} core-seconds per GB");
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
}
