//! The client process: so many callers, each with one request at a time, for a while; what they saw as one line of
//! JSON. It must not know what answers.

mod grpc;
mod http;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Failure;
use crate::arguments::{Call, ClientArgs};
use grpc::Grpc;
use http::Http;

/// Tokens of every answer.
pub(crate) const TOKENS: u32 = 16;
/// Before anything is counted.
const WARM_UP: Duration = Duration::from_millis(300);

/// Times of one answer, from its request.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    first: Duration,
    last: Duration,
    end: Duration,
}

/// What all callers saw.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// That were counted.
    pub(crate) answers: usize,
    /// Requests, the warm-up's too.
    pub(crate) asked: u64,
    pub(crate) seconds: f64,
    /// To the first token, in microseconds.
    pub(crate) first_us: Percentiles,
    /// To the last token.
    pub(crate) last_us: Percentiles,
    /// To the end of the answer.
    pub(crate) end_us: Percentiles,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// One caller's way to ask.
enum Caller {
    Http(Http),
    Grpc(Box<Grpc>),
}

impl Caller {
    async fn ask(&mut self, prompt: &str) -> io::Result<Times> {
        match self {
            Self::Http(http) => http.ask(prompt).await,
            Self::Grpc(grpc) => grpc.ask(prompt).await,
        }
    }
}

/// Numbers the prompts: no two are the same.
static ASKED: AtomicU64 = AtomicU64::new(0);

fn prompt() -> String {
    let number = ASKED.fetch_add(1, Ordering::Relaxed);
    format!("{number:07}: tell me a story about it.")
}

/// Calls for the time asked for.
pub(crate) async fn run(args: &ClientArgs) -> Result<(), Failure> {
    let mut callers = Vec::new();
    let grpc = match args.call {
        Call::Generate | Call::Decode => Some(Grpc::new(args.call, &args.address).await?),
        Call::Stream | Call::Whole | Call::Chat => None,
    };
    for _ in 0..args.callers {
        callers.push(match &grpc {
            Some(grpc) => Caller::Grpc(Box::new(grpc.clone())),
            None => Caller::Http(Http::new(args.call, &args.address, &args.model_name).await?),
        });
    }
    let begins = Instant::now() + WARM_UP;
    let ends = begins + Duration::from_secs_f64(args.seconds);
    let mut running = JoinSet::new();
    for mut caller in callers {
        running.spawn_local(async move {
            let mut all = Vec::new();
            while Instant::now() < ends {
                let counts = Instant::now() >= begins;
                let times = caller.ask(&prompt()).await?;
                if counts {
                    all.push(times);
                }
            }
            Ok::<_, io::Error>(all)
        });
    }
    let mut all = Vec::new();
    while let Some(seen) = running.join_next().await {
        all.extend(seen??);
    }
    let seconds = begins.elapsed().as_secs_f64();
    let of = |what: fn(&Times) -> Duration| percentiles(all.iter().map(what).collect());
    let seen = Seen {
        answers: all.len(),
        asked: ASKED.load(Ordering::Relaxed),
        seconds,
        first_us: of(|times| times.first),
        last_us: of(|times| times.last),
        end_us: of(|times| times.end),
    };
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn percentiles(mut all: Vec<Duration>) -> Percentiles {
    all.sort_unstable();
    let at = |share: f64| {
        let index = (all.len() as f64 * share) as usize;
        let time = all.get(index.min(all.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Percentiles {
        p50: at(0.5),
        p99: at(0.99),
    }
}
