//! `baton generate`: one request, streamed to standard output.

use std::io::Read;
use std::time::Duration;

use baton_proto::code_name;
use baton_proto::v1::generate_request::Input;
use baton_proto::v1::generate_response::Event;
use baton_proto::v1::{
    ChatInput, ChatMessage, DoneEvent, FinishReason, FinishedEvent, GenerateRequest, PromptEvent,
    SamplingOptions, TokenEvent, TokenInput,
};
use serde_json::{Value, json};

use crate::args::{Format, GenerateArgs};
use crate::exit::{Failure, readable};
use crate::receipt::{receipt_json, receipt_text, usage_json};
use crate::timeline::{Canvas, Timeline};
use crate::{client, output, trace};

/// Largest --prompt-file; the router's own limit is lower and names itself.
const MAX_PROMPT_FILE_BYTES: u64 = 64 << 20;

/// Sends the request and prints events as they arrive.
pub(crate) async fn run(args: GenerateArgs) -> Result<(), Failure> {
    let mut printer = Printer::new(&args);
    let result = stream(&args, &mut printer).await;
    match result {
        Ok(()) => Ok(()),
        Err(failure) => Err(printer.error(failure)),
    }
}

async fn stream(args: &GenerateArgs, printer: &mut Printer) -> Result<(), StreamError> {
    let message = request(args)?;
    let mut client = client::inference(args.connect.as_deref(), &args.security).await?;
    let mut request = tonic::Request::new(message);
    if let Some(deadline_ms) = args.deadline_ms {
        request.set_timeout(Duration::from_millis(deadline_ms));
    }
    let mut events = client.generate(request).await?.into_inner();
    let mut done = None;
    loop {
        let next = tokio::select! {
            next = events.message() => next?,
            _ = tokio::signal::ctrl_c() => {
                return Err(StreamError::Local(Failure::failed("interrupted")));
            }
        };
        match next.map(|response| response.event) {
            Some(Some(Event::Prompt(prompt))) => printer.prompt(&prompt)?,
            Some(Some(Event::Token(token))) => printer.token(&token)?,
            Some(Some(Event::Finished(finished))) => printer.finished(&finished)?,
            Some(Some(Event::Done(event))) => {
                printer.done(&event)?;
                done = Some(event);
            }
            // An event of a newer router; what is known still arrives.
            Some(None) => {}
            None => break,
        }
    }
    let done =
        done.ok_or_else(|| tonic::Status::internal("the stream ended without a final event"))?;
    if args.trace {
        let timeline = trace::of_ended(args.connect.as_deref(), &args.security, &done).await;
        printer.timeline(&timeline)?;
    }
    Ok(())
}

/// Why the stream ended early.
enum StreamError {
    /// The service's answer.
    Status(Box<tonic::Status>),
    /// Something on this side.
    Local(Failure),
}

impl From<tonic::Status> for StreamError {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<Failure> for StreamError {
    fn from(failure: Failure) -> Self {
        Self::Local(failure)
    }
}

fn request(args: &GenerateArgs) -> Result<GenerateRequest, Failure> {
    if args.deadline_ms == Some(0) {
        return Err(Failure::usage("--deadline-ms is 0, allowed: 1 and more"));
    }
    for (flag, is_given) in [
        ("--logprobs", args.logprobs.is_some()),
        ("--prompt-logprobs", args.prompt_logprobs.is_some()),
    ] {
        if is_given && args.format != Some(Format::Json) {
            return Err(Failure::usage(format!(
                "{flag} has no place in text; add --format json"
            )));
        }
    }
    let input = match (&args.prompt, &args.chat, &args.prompt_file) {
        (Some(prompt), None, None) => Input::Prompt(prompt.clone()),
        (None, Some(chat), None) => Input::Chat(chat_input(args.system.as_deref(), chat)),
        (None, None, Some(path)) => Input::Prompt(read_prompt(path)?),
        (None, None, None) if !args.token_ids.is_empty() => Input::Tokens(TokenInput {
            token_ids: args.token_ids.clone(),
        }),
        _ => {
            return Err(Failure::usage(
                "give exactly one of --prompt, --chat, --prompt-file and --token-ids",
            ));
        }
    };
    let sampling = SamplingOptions {
        temperature: Some(args.temperature.unwrap_or(0.0)),
        top_p: args.top_p,
        top_k: args.top_k,
        min_p: args.min_p,
        seed: args.seed,
        n: args.n,
        max_tokens: args.max_tokens,
        min_tokens: args.min_tokens.unwrap_or(0),
        presence_penalty: args.presence_penalty.unwrap_or(0.0),
        frequency_penalty: args.frequency_penalty.unwrap_or(0.0),
        repetition_penalty: args.repetition_penalty,
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        logprobs: args.logprobs,
        prompt_logprobs: args.prompt_logprobs,
        ..SamplingOptions::default()
    };
    Ok(GenerateRequest {
        input: Some(input),
        sampling: Some(sampling),
        ..GenerateRequest::default()
    })
}

fn chat_input(system: Option<&str>, chat: &str) -> ChatInput {
    let turn = |role: &str, content: &str| ChatMessage {
        role: role.into(),
        content: content.into(),
    };
    let mut messages: Vec<_> = system
        .map(|text| turn("system", text))
        .into_iter()
        .collect();
    messages.push(turn("user", chat));
    ChatInput { messages }
}

fn read_prompt(path: &std::path::Path) -> Result<String, Failure> {
    let name = path.display();
    let wrong = |error: std::io::Error| Failure::usage(format!("--prompt-file {name}: {error}"));
    let source: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(wrong)?)
    };
    let mut text = String::new();
    source
        .take(MAX_PROMPT_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(wrong)?;
    if text.len() as u64 > MAX_PROMPT_FILE_BYTES {
        return Err(Failure::usage(format!(
            "--prompt-file {name} is larger than {MAX_PROMPT_FILE_BYTES} bytes"
        )));
    }
    Ok(text)
}

/// Prints events in the format asked for.
struct Printer {
    format: Format,
    receipt: bool,
    choices: u32,
    /// Several choices interleave, so text mode collects each and prints it whole.
    texts: Vec<String>,
    /// Whether the last text printed leaves its line open.
    midline: bool,
}

impl Printer {
    fn new(args: &GenerateArgs) -> Self {
        // The router enforces its own limit; this bound only sizes the buffers here.
        let choices = args.n.unwrap_or(1).clamp(1, baton_sampling::MAX_CHOICES);
        Self {
            format: args.format.unwrap_or(Format::Text),
            receipt: args.receipt,
            choices,
            texts: vec![String::new(); choices as usize],
            midline: false,
        }
    }

    fn prompt(&mut self, prompt: &PromptEvent) -> Result<(), Failure> {
        if self.format != Format::Json {
            return Ok(());
        }
        let logprobs: Vec<Value> = prompt.logprobs.iter().map(logprobs_json).collect();
        line(&json!({
            "event": "prompt", "position": prompt.position,
            "token_ids": prompt.token_ids, "logprobs": logprobs,
        }))
    }

    fn token(&mut self, token: &TokenEvent) -> Result<(), Failure> {
        if self.format == Format::Json {
            let logprobs: Vec<Value> = token.logprobs.iter().map(logprobs_json).collect();
            return line(&json!({
                "event": "token", "choice": token.choice, "position": token.position,
                "token_ids": token.token_ids, "text": token.text, "logprobs": logprobs,
            }));
        }
        if self.choices == 1 {
            self.midline = !token.text.ends_with('\n') && (self.midline || !token.text.is_empty());
            return output::result(&token.text);
        }
        if let Some(text) = self.texts.get_mut(token.choice as usize) {
            text.push_str(&token.text);
        }
        Ok(())
    }

    fn finished(&mut self, finished: &FinishedEvent) -> Result<(), Failure> {
        if self.format == Format::Json {
            let mut event = json!({
                "event": "finished", "choice": finished.choice,
                "finish_reason": finish_reason(finished.finish_reason()),
                "completion_tokens": finished.completion_tokens,
            });
            if !finished.stop.is_empty() {
                event["stop"] = json!(finished.stop);
            }
            return line(&event);
        }
        if self.choices == 1 {
            self.midline = false;
            return output::result("\n");
        }
        let text = self
            .texts
            .get(finished.choice as usize)
            .map_or("", String::as_str);
        output::result(&format!("[{}] {text}\n", finished.choice))
    }

    fn done(&mut self, done: &DoneEvent) -> Result<(), Failure> {
        if self.format == Format::Json {
            return line(
                &json!({ "event": "done", "usage": usage_json(done), "receipt": receipt_json(done) }),
            );
        }
        if self.receipt {
            output::remark(&format!("\n{}", receipt_text(done)));
        }
        Ok(())
    }

    fn timeline(&mut self, timeline: &Timeline) -> Result<(), Failure> {
        if self.format == Format::Json {
            return line(&json!({ "event": "trace", "trace": timeline.json() }));
        }
        let drawn = Canvas::of(&std::io::stderr()).draw(timeline);
        output::remark(&format!("\n{drawn}"));
        Ok(())
    }

    fn error(&mut self, error: StreamError) -> Failure {
        let (failure, code, message) = match error {
            // Nobody would read it.
            StreamError::Local(failure) if failure.is_reader_gone() => return failure,
            StreamError::Status(status) => {
                let status = readable(&status);
                let code = code_name(status.code());
                (
                    Failure::from_status(&status),
                    code,
                    status.message().to_owned(),
                )
            }
            StreamError::Local(failure) => {
                let (code, message) = (failure.code_name(), failure.message().to_owned());
                (failure, code, message)
            }
        };
        if self.format != Format::Json {
            if self.midline {
                // The text was cut: the message goes on a line of its own.
                let _ = output::result("\n");
            }
            return failure;
        }
        match line(&json!({ "event": "error", "code": code, "message": message })) {
            Ok(()) => failure.told(),
            Err(broken) => broken,
        }
    }
}

fn line(value: &Value) -> Result<(), Failure> {
    output::result(&format!("{value}\n"))
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Unspecified => "unspecified",
    }
}

fn logprobs_json(logprobs: &baton_proto::v1::TokenLogprobs) -> Value {
    let top: Vec<Value> = logprobs
        .top
        .iter()
        .map(|entry| {
            json!({
                "token_id": entry.token_id, "logprob": entry.logprob,
                "text": entry.text, "bytes": entry.text_bytes,
            })
        })
        .collect();
    json!({ "logprob": logprobs.chosen, "top": top })
}
