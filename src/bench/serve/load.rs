//! Sends the load and notes when every token arrived.
//!
//! Times are the client's own: from the call to each token event. Prompts are random token ids, so no
//! two share a prefix by accident; ids below 256 are left out, where models keep control tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use baton_proto::code_name;
use baton_proto::v1::generate_request::Input;
use baton_proto::v1::generate_response::Event;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use baton_proto::v1::{GenerateRequest, ListModelsRequest, SamplingOptions, TokenInput};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::client::{self, Connection};
use crate::exit::Failure;
use crate::progress;

use super::lengths::Lengths;
use super::plan::{Arrivals, Injected, Plan};

/// First id of random prompts.
const FIRST_PROMPT_ID: u32 = 256;

/// What one request saw.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Whether it was one of the steady streams (as opposed to injected, or any in other modes).
    pub(crate) steady: bool,
    /// Since the start of the run.
    pub(crate) start: Duration,
    /// Arrival of each token since the request's start.
    pub(crate) tokens: Vec<Duration>,
    pub(crate) prompt_tokens: u32,
    /// `CODE: message` when it failed.
    pub(crate) error: Option<String>,
}

/// One request to send.
struct Planned {
    prompt: Vec<u32>,
    output_tokens: u32,
    steady: bool,
    /// Ends the stream from this side; `None` lets it finish.
    until: Option<Instant>,
}

/// Plans requests from one seeded generator, so that a run can be repeated.
struct Source {
    random: StdRng,
    vocabulary: u32,
}

impl Source {
    fn plan(&mut self, prompt: Lengths, output: Lengths) -> Planned {
        let length = prompt.draw(&mut self.random);
        let first = FIRST_PROMPT_ID.min(self.vocabulary - 1);
        let prompt = (0..length)
            .map(|_| self.random.random_range(first..self.vocabulary))
            .collect();
        Planned {
            prompt,
            output_tokens: output.draw(&mut self.random),
            steady: false,
            until: None,
        }
    }
}

/// Sends everything and gathers the samples.
pub(crate) async fn run(plan: &Plan) -> Result<Vec<Sample>, Failure> {
    let channel = client::connect(plan.connect.as_deref(), &plan.security).await?;
    let models = InferenceServiceClient::new(channel.clone())
        .list_models(ListModelsRequest {})
        .await
        .map_err(|status| Failure::from_status(&status))?
        .into_inner()
        .models;
    let vocabulary = models
        .first()
        .map(|model| model.vocabulary)
        .filter(|size| *size > 0)
        .ok_or_else(|| Failure::refused("the router serves no model yet"))?;
    let source = Source {
        random: StdRng::seed_from_u64(plan.seed),
        vocabulary,
    };
    let samples = match plan.arrivals {
        Arrivals::Closed { concurrency } => closed(plan, channel, source, concurrency).await,
        Arrivals::Poisson { rate } => poisson(plan, channel, source, rate).await,
        Arrivals::Steady {
            streams,
            inject,
            duration,
        } => steady(plan, channel, source, streams, inject, duration).await,
    };
    Ok(samples)
}

async fn closed(plan: &Plan, channel: Connection, source: Source, concurrency: u32) -> Vec<Sample> {
    let bar = progress::requests("requests", plan.requests.into());
    let next = Arc::new(AtomicU32::new(0));
    let begin = Instant::now();
    let mut loops = JoinSet::new();
    for _ in 0..concurrency.min(plan.requests) {
        let (next, channel, bar) = (next.clone(), channel.clone(), bar.clone());
        let (seed, requests, prompt, output) = (plan.seed, plan.requests, plan.prompt, plan.output);
        let vocabulary = source.vocabulary;
        loops.spawn(async move {
            let mut samples = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= requests {
                    return samples;
                }
                // Seeded by the index: the same requests, whichever loop sends them.
                let random = StdRng::seed_from_u64(seed ^ u64::from(index) << 32);
                let planned = Source { random, vocabulary }.plan(prompt, output);
                samples.push(send(channel.clone(), &planned, begin).await);
                bar.inc(1);
            }
        });
    }
    let samples = loops.join_all().await.into_iter().flatten().collect();
    bar.finish_and_clear();
    samples
}

async fn poisson(plan: &Plan, channel: Connection, mut source: Source, rate: f64) -> Vec<Sample> {
    let bar = progress::requests("requests", plan.requests.into());
    let begin = Instant::now();
    let mut arrival = Duration::ZERO;
    let mut running = JoinSet::new();
    for _ in 0..plan.requests {
        let planned = source.plan(plan.prompt, plan.output);
        let gap = -(1.0 - source.random.random::<f64>()).ln() / rate;
        arrival += Duration::from_secs_f64(gap);
        tokio::time::sleep_until((begin + arrival).into()).await;
        let (channel, bar) = (channel.clone(), bar.clone());
        running.spawn(async move {
            let sample = send(channel, &planned, begin).await;
            bar.inc(1);
            sample
        });
    }
    let samples = running.join_all().await;
    bar.finish_and_clear();
    samples
}

async fn steady(
    plan: &Plan,
    channel: Connection,
    mut source: Source,
    streams: u32,
    inject: Option<Injected>,
    duration: Duration,
) -> Vec<Sample> {
    let begin = Instant::now();
    let end = begin + duration;
    let bar = progress::requests("seconds", duration.as_secs());
    let clock = {
        let bar = bar.clone();
        tokio::spawn(async move {
            let mut seconds = tokio::time::interval(Duration::from_secs(1));
            loop {
                seconds.tick().await;
                bar.set_position(begin.elapsed().as_secs());
            }
        })
    };
    let mut running = JoinSet::new();
    for _ in 0..streams {
        let seed = source.random.random();
        let mut source = Source {
            random: StdRng::seed_from_u64(seed),
            vocabulary: source.vocabulary,
        };
        let (channel, prompt, output) = (channel.clone(), plan.prompt, plan.output);
        running.spawn(async move {
            let mut samples = Vec::new();
            // A stream that reaches its length is followed by another, so that the load stays the same.
            while Instant::now() < end {
                let planned = Planned {
                    steady: true,
                    until: Some(end),
                    ..source.plan(prompt, output)
                };
                let sample = send(channel.clone(), &planned, begin).await;
                let failed = sample.error.is_some();
                samples.push(sample);
                if failed {
                    // A refusing service must not be hammered.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            samples
        });
    }
    if let Some(inject) = inject {
        let gap = Duration::from_secs_f64(1.0 / inject.rate);
        let mut arrival = begin + gap;
        while arrival < end {
            tokio::time::sleep_until(arrival.into()).await;
            let planned = source.plan(inject.prompt, inject.output);
            let channel = channel.clone();
            running.spawn(async move { vec![send(channel, &planned, begin).await] });
            arrival += gap;
        }
    }
    let samples = running.join_all().await.into_iter().flatten().collect();
    clock.abort();
    bar.finish_and_clear();
    samples
}

/// Sends one request and notes its token times. Failures become part of the sample.
async fn send(channel: Connection, planned: &Planned, begin: Instant) -> Sample {
    let start = Instant::now();
    let mut sample = Sample {
        steady: planned.steady,
        start: start - begin,
        tokens: Vec::with_capacity(planned.output_tokens as usize),
        prompt_tokens: planned.prompt.len() as u32,
        error: None,
    };
    let request = GenerateRequest {
        input: Some(Input::Tokens(TokenInput {
            token_ids: planned.prompt.clone(),
        })),
        sampling: Some(SamplingOptions {
            temperature: Some(0.0),
            max_tokens: Some(planned.output_tokens),
            ignore_eos: true,
            ..SamplingOptions::default()
        }),
        ..GenerateRequest::default()
    };
    if let Err(status) = stream(channel, request, planned.until, start, &mut sample.tokens).await {
        sample.error = Some(format!(
            "{}: {}",
            code_name(status.code()),
            status.message()
        ));
    }
    sample
}

async fn stream(
    channel: Connection,
    request: GenerateRequest,
    until: Option<Instant>,
    start: Instant,
    tokens: &mut Vec<Duration>,
) -> Result<(), tonic::Status> {
    let mut events = InferenceServiceClient::new(channel)
        .generate(request)
        .await?
        .into_inner();
    let end = async {
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    loop {
        let next = tokio::select! {
            next = events.message() => next?,
            () = &mut end => return Ok(()),
        };
        match next.and_then(|response| response.event) {
            Some(Event::Token(token)) => {
                let arrival = start.elapsed();
                tokens.extend(token.token_ids.iter().map(|_| arrival));
            }
            Some(Event::Prompt(_) | Event::Finished(_)) => {}
            Some(Event::Done(_)) => return Ok(()),
            None => {
                return Err(tonic::Status::internal(
                    "the stream ended without a final event",
                ));
            }
        }
    }
}
