//! What is known, selected and open, and what keys do. It must not know how it is drawn.

use std::time::{Duration, Instant};

use baton_proto::v1::{RequestRecord, WorkerStatus};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tonic::Status;

use super::watch::{Heard, Known};

/// How long a word stays.
const SAID: Duration = Duration::from_secs(8);

/// A list that can be walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Workers,
    Requests,
}

/// What lies over everything.
#[derive(Debug, Clone)]
pub(super) enum Over {
    /// Whether to drain this worker.
    Drain(String),
    Receipt(Box<RequestRecord>),
    Help,
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    Drain(String),
    Open(String),
}

/// The whole view.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) address: String,
    pub(super) known: Known,
    pub(super) panel: Panel,
    /// Incarnation of the selected worker, and id of the selected request: they stay selected wherever
    /// they move.
    pub(super) worker: Option<u64>,
    pub(super) request: Option<String>,
    pub(super) over: Option<Over>,
    /// Since when the router has not answered, and why.
    pub(super) missed: Option<(Instant, String)>,
    said: Option<(Instant, String)>,
}

impl Screen {
    pub(super) fn new(address: &str, known: Known) -> Self {
        Self {
            address: address.to_owned(),
            known,
            panel: Panel::Workers,
            worker: None,
            request: None,
            over: None,
            missed: None,
            said: None,
        }
    }

    /// The router has answered, or has not.
    pub(super) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::All(Ok(known)) => {
                self.known = known;
                self.missed = None;
            }
            Heard::All(Err(status)) => self.miss(&status),
            Heard::Said(words) => self.tell(words),
            Heard::Request(Ok(record)) => self.over = Some(Over::Receipt(record)),
            Heard::Request(Err(status)) => self.tell(status.message().to_owned()),
        }
    }

    fn miss(&mut self, status: &Status) {
        let since = self
            .missed
            .as_ref()
            .map_or(self.known.at, |(since, _)| *since);
        self.missed = Some((since, status.message().to_owned()));
    }

    /// Says something for a while.
    fn tell(&mut self, words: String) {
        self.said = Some((Instant::now(), words));
    }

    /// What was said of late.
    pub(super) fn said(&self, now: Instant) -> Option<&str> {
        let (at, words) = self.said.as_ref()?;
        (now.saturating_duration_since(*at) < SAID).then_some(words)
    }

    /// Does what a key means.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt {
            return Action::Quit;
        }
        match (self.over.take(), key.code) {
            (Some(Over::Drain(worker)), KeyCode::Char('y')) => Action::Drain(worker),
            // Whatever else is pressed closes what is open.
            (Some(_), _) => Action::None,
            (None, KeyCode::Char('q') | KeyCode::Esc) => Action::Quit,
            (None, code) => self.walk(code),
        }
    }

    fn walk(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-10),
            KeyCode::PageDown => self.step(10),
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => {
                self.panel = match self.panel {
                    Panel::Workers => Panel::Requests,
                    Panel::Requests => Panel::Workers,
                };
            }
            KeyCode::Char('?' | 'h') => self.over = Some(Over::Help),
            KeyCode::Char('d') => match self.selected_worker() {
                Some(worker) => self.over = Some(Over::Drain(id_of(worker).to_owned())),
                None => self.tell("there is no worker to drain".to_owned()),
            },
            KeyCode::Enter => {
                if let (Panel::Requests, Some(request)) = (self.panel, self.selected_request()) {
                    return Action::Open(request.request_id.clone());
                }
            }
            _ => {}
        }
        Action::None
    }

    /// Position of the selected worker in the list; the first one if it has gone.
    pub(super) fn worker_at(&self) -> usize {
        let workers = &self.known.workers.workers;
        let found = workers.iter().position(|worker| {
            let incarnation = worker.info.as_ref().map(|info| info.incarnation);
            incarnation.is_some() && incarnation == self.worker
        });
        found.unwrap_or(0)
    }

    /// Position of the selected request.
    pub(super) fn request_at(&self) -> usize {
        let requests = &self.known.requests.requests;
        let is_it = |request: &RequestRecord| Some(&request.request_id) == self.request.as_ref();
        requests.iter().position(is_it).unwrap_or(0)
    }

    fn selected_worker(&self) -> Option<&WorkerStatus> {
        self.known.workers.workers.get(self.worker_at())
    }

    fn selected_request(&self) -> Option<&RequestRecord> {
        self.known.requests.requests.get(self.request_at())
    }

    fn step(&mut self, by: isize) {
        match self.panel {
            Panel::Workers => {
                let workers = &self.known.workers.workers;
                let at = moved(self.worker_at(), by, workers.len());
                let info = workers.get(at).and_then(|worker| worker.info.as_ref());
                self.worker = info.map(|info| info.incarnation);
            }
            Panel::Requests => {
                let requests = &self.known.requests.requests;
                let at = moved(self.request_at(), by, requests.len());
                self.request = requests.get(at).map(|request| request.request_id.clone());
            }
        }
    }
}

fn moved(at: usize, by: isize, len: usize) -> usize {
    at.saturating_add_signed(by).min(len.saturating_sub(1))
}

/// Name of a worker.
pub(super) fn id_of(worker: &WorkerStatus) -> &str {
    worker.info.as_ref().map_or("", |info| &info.worker_id)
}
