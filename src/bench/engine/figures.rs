//! From measurements to figures: medians, and shares of what the same run's ceilings allow.

use crate::bench::statistics::Median;

use super::footprint::Footprint;
use super::machine::Ceilings;
use super::peer::AS_SHIPPED;
use super::rounds::Rates;
use super::subject::Subject;
use super::work::Work;

/// What was measured, and how.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) model: String,
    pub(super) threads: usize,
    pub(super) isa: &'static str,
    pub(super) kv_dtype: &'static str,
    pub(super) rounds: u32,
    /// What the peer calls itself.
    pub(super) peer: Option<String>,
    /// Forms of the model that the peer ran.
    pub(super) formats: Vec<&'static str>,
}

/// All figures of a run.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub(super) header: Header,
    pub(super) footprint: Footprint,
    pub(super) ceilings: Ceilings,
    pub(super) prefill: Vec<Prefill>,
    pub(super) decode: Vec<Decode>,
}

/// Prompts of one length.
#[derive(Debug, Clone)]
pub(super) struct Prefill {
    pub(super) tokens: u32,
    pub(super) speed: Speed,
    /// Operations of the products over the whole time, of the int8 ceiling.
    pub(super) share: f64,
    /// The products alone, of the int8 ceiling.
    pub(super) products_share: f64,
}

/// Streams of one context.
#[derive(Debug, Clone)]
pub(super) struct Decode {
    pub(super) streams: u32,
    pub(super) context: u32,
    pub(super) speed: Speed,
    /// Bytes of weights and of K and V over the time, of the read ceiling of 96 MiB.
    pub(super) share: f64,
}

/// Tokens per second.
#[derive(Debug, Clone)]
pub(super) struct Speed {
    pub(super) tokens: Median,
    /// What the ceilings allow: products at int8 and attention at bf16 speed; or, for decode, the slower
    /// of that and of reading weights, K and V.
    pub(super) limit: f64,
    /// The peer's, by form of the model.
    pub(super) peers: Vec<PeerSpeed>,
}

/// Tokens per second of the peer with one form of the model.
#[derive(Debug, Clone)]
pub(super) struct PeerSpeed {
    pub(super) format: &'static str,
    pub(super) tokens: Median,
    /// Ours over the peer's of the same round.
    pub(super) ratio: Median,
}

impl Speed {
    /// `rates` by contender, ours first; `formats` names the others.
    fn new(rates: &[Vec<f64>], formats: &[&'static str], limit: f64) -> Self {
        let (ours, theirs) = rates.split_first().expect("ours is always measured");
        let peers = formats.iter().zip(theirs).map(|(format, rates)| PeerSpeed {
            format,
            tokens: Median::of(rates.iter().copied()),
            ratio: Median::of(ours.iter().zip(rates).map(|(ours, theirs)| ours / theirs)),
        });
        Self {
            tokens: Median::of(ours.iter().copied()),
            limit,
            peers: peers.collect(),
        }
    }

    /// The peer with the same file, as it is.
    pub(super) fn same_file(&self) -> Option<&PeerSpeed> {
        self.peers.iter().find(|peer| peer.format == AS_SHIPPED)
    }

    /// The peer with the form of the model that it is fastest with.
    pub(super) fn best_format(&self) -> Option<&PeerSpeed> {
        let faster = |a: &&PeerSpeed, b: &&PeerSpeed| a.tokens.value.total_cmp(&b.tokens.value);
        self.peers.iter().max_by(faster)
    }
}

impl Figures {
    /// `rates` by work, ours first; `products` are seconds of products alone by work and round.
    pub(super) fn new(
        header: Header,
        footprint: Footprint,
        ceilings: Ceilings,
        subject: &Subject,
        work: &[Work],
        rates: &Rates,
        products: &[Vec<f64>],
    ) -> Self {
        let mut figures = Self {
            header,
            footprint,
            ceilings,
            prefill: Vec::new(),
            decode: Vec::new(),
        };
        for (index, &work) in work.iter().enumerate() {
            let cost = subject.products(work);
            let operations = cost.operations as f64;
            let computing =
                operations / ceilings.int8 + subject.attention_operations(work) / ceilings.bf16;
            let speed = |limit| Speed::new(rates.of(index), &figures.header.formats, limit);
            match work {
                Work::Prefill { tokens } => {
                    let speed = speed(f64::from(tokens) / computing);
                    let alone = Median::of(products[index].iter().copied()).value;
                    let per_token = operations / f64::from(tokens);
                    figures.prefill.push(Prefill {
                        tokens,
                        share: per_token * speed.tokens.value / ceilings.int8,
                        products_share: operations / alone / ceilings.int8,
                        speed,
                    });
                }
                Work::Decode { streams, context } => {
                    let bytes = cost.weight_bytes as f64 + subject.kv_bytes(work);
                    let reading = bytes / ceilings.weights_read();
                    let speed = speed(f64::from(streams) / computing.max(reading));
                    figures.decode.push(Decode {
                        streams,
                        context,
                        share: reading * speed.tokens.value / f64::from(streams),
                        speed,
                    });
                }
            }
        }
        figures
    }
}
