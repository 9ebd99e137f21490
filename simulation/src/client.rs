//! A client of the router: sends one request, compares every token with the oracle's as it comes, and says
//! how the request ended. It must not know the fleet.

use std::time::Duration;

use baton_cluster::Dialer;
use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::answer::Answer;
use crate::log::Log;
use crate::model::Model;
use crate::scenario::Ask;

/// How long after its deadline a request may still be without an end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a request ended for its client.
#[derive(Debug, Clone)]
pub enum Ending {
    /// With all its tokens.
    Done,
    /// With an error.
    Error(Code, String),
    /// The client hung up.
    Left,
    /// As no request may end.
    Badly(String),
}

/// What came of a request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// When it was sent.
    pub started: Instant,
    /// When it ended.
    pub ended: Instant,
    /// How.
    pub ending: Ending,
    /// In words: what should not have happened.
    pub wrong: Vec<String>,
}

/// A request on its way.
pub struct Client<'a> {
    /// Which.
    pub number: usize,
    /// What is asked.
    pub ask: &'a Ask,
    /// What is served, and so what is right.
    pub model: &'a Model,
    /// What happens.
    pub log: &'a Log,
}

impl Client<'_> {
    /// Sends the request over a connection of its own and follows it to its end.
    pub async fn run(&self, dialer: &Dialer, address: &str) -> Outcome {
        let started = Instant::now();
        let mut wrong = Vec::new();
        self.note("is sent");
        // What was computed in time is still there to be read by a client that takes its time.
        let events = self.ask.choices * (self.ask.max_tokens + 1);
        let limit = self.ask.deadline + PATIENCE + self.ask.pause * events;
        let followed = tokio::time::timeout(limit, self.follow(dialer, address, &mut wrong)).await;
        let ending = followed.unwrap_or_else(|_| Ending::Badly(format!("no end within {limit:?}")));
        if let Ending::Badly(what) = &ending {
            wrong.push(what.clone());
        }
        self.note(&format!("ends: {ending:?}"));
        Outcome {
            started,
            ended: Instant::now(),
            ending,
            wrong,
        }
    }

    async fn follow(&self, dialer: &Dialer, address: &str, wrong: &mut Vec<String>) -> Ending {
        let channel = match dialer.channel(address) {
            Ok(channel) => channel,
            Err(error) => return Ending::Badly(error.to_string()),
        };
        let mut answer = Answer::to(self.model, self.ask);
        let mut request = tonic::Request::new(self.message(&answer.stops));
        request.set_timeout(self.ask.deadline);
        let stream = InferenceServiceClient::new(channel).generate(request).await;
        let mut stream = match stream {
            Ok(stream) => stream.into_inner(),
            Err(status) => return failed(&status),
        };
        loop {
            if self
                .ask
                .drop_after
                .is_some_and(|most| answer.events >= most)
            {
                return Ending::Left;
            }
            tokio::time::sleep(self.ask.pause).await;
            match stream.message().await {
                Ok(Some(response)) => self.hear(&mut answer, response, wrong),
                Ok(None) if answer.is_done => return Ending::Done,
                Ok(None) => return Ending::Badly("an end without Done or error".into()),
                Err(status) => {
                    if answer.is_done {
                        wrong.push(format!("after Done: {status}"));
                    }
                    self.nothing_follows(&mut stream, wrong).await;
                    return failed(&status);
                }
            }
        }
    }

    async fn nothing_follows(
        &self,
        stream: &mut Streaming<v1::GenerateResponse>,
        wrong: &mut Vec<String>,
    ) {
        if let Ok(Some(event)) = stream.message().await {
            wrong.push(format!("after an error: {event:?}"));
        }
    }

    fn message(&self, stops: &[String]) -> v1::GenerateRequest {
        let ask = self.ask;
        let token_ids = ask.prompt.clone();
        let input = v1::generate_request::Input::Tokens(v1::TokenInput { token_ids });
        v1::GenerateRequest {
            input: Some(input),
            sampling: Some(v1::SamplingOptions {
                temperature: Some(ask.temperature),
                seed: Some(ask.seed),
                n: Some(ask.choices),
                max_tokens: Some(ask.max_tokens),
                min_tokens: ask.min_tokens,
                frequency_penalty: ask.frequency_penalty,
                stop_token_ids: ask.stop_token_ids.clone(),
                stop: stops.to_vec(),
                logprobs: ask.logprobs,
                ..v1::SamplingOptions::default()
            }),
            ..v1::GenerateRequest::default()
        }
    }

    fn hear(&self, answer: &mut Answer, response: v1::GenerateResponse, wrong: &mut Vec<String>) {
        answer.events += 1;
        if answer.is_done {
            wrong.push(format!("after Done: {response:?}"));
        }
        match response.event {
            Some(Event::Token(token)) => {
                self.note(&format!(
                    "hears {}.{}: {:?}",
                    token.choice, token.position, token.token_ids
                ));
                wrong.extend(answer.token(&token));
            }
            Some(Event::Finished(finished)) => wrong.extend(answer.finished(&finished)),
            Some(Event::Done(_)) => wrong.extend(answer.done()),
            Some(Event::Prompt(_)) | None => wrong.push(format!("not asked for: {response:?}")),
        }
    }

    fn note(&self, what: &str) {
        self.log
            .note(format_args!("request {} {what}", self.number));
    }
}

fn failed(status: &Status) -> Ending {
    Ending::Error(status.code(), status.message().to_owned())
}
