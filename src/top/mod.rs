//! `baton top`: what the page at `/ui` shows, in a terminal.
//!
//! - `watch`: asks the router, second by second.
//! - `screen`: what is selected and open, and what keys do.
//! - `draw`, `workers`, `requests`, `latency`: what it looks like.

mod draw;
mod latency;
mod requests;
mod screen;
#[cfg(test)]
mod tests;
mod watch;
mod workers;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;

use crate::args::TopArgs;
use crate::client;
use crate::exit::Failure;
use screen::{Action, Screen};
use watch::Watch;

/// How often the router is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How often bars move.
const FRAME: Duration = Duration::from_millis(250);
/// Keys that wait to be taken, at most.
const KEYS: usize = 64;
/// Longest wait for a key before the reader looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(200);

/// Shows a running service until it is told to stop.
pub(crate) async fn run(args: TopArgs) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "baton top needs a terminal for input and output; `baton status` prints the same once, with --format json for programs",
        ));
    }
    let address = args.connect.as_deref().unwrap_or(client::DEFAULT_ROUTER);
    let mut watch = Watch::new(client::admin(args.connect.as_deref(), &args.security).await?);
    // Before the terminal changes: a refusal is told as ever.
    let mut screen = Screen::new(address, watch.first().await?);
    let _restored = Restored;
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::failed(format!("the terminal cannot be used: {error}")))?;
    show(&mut terminal, &mut screen, &mut watch).await
}

/// Gives the terminal back, however this ends; ratatui does so after a panic.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    watch: &mut Watch,
) -> Result<(), Failure> {
    let mut keys = keys();
    let mut asking = tokio::time::interval(EVERY);
    let mut frames = tokio::time::interval(FRAME);
    for interval in [&mut asking, &mut frames] {
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    }
    loop {
        terminal
            .draw(|frame| draw::draw(frame, screen, Instant::now()))
            .map_err(|error| Failure::failed(format!("the terminal cannot be drawn: {error}")))?;
        tokio::select! {
            key = keys.recv() => match key.map(|key| screen.press(key)) {
                None | Some(Action::Quit) => return Ok(()),
                Some(Action::None) => {}
                Some(Action::Drain(worker)) => screen.tell(watch.drain(&worker).await),
                Some(Action::Open(request)) => screen.open(watch.request(&request).await),
            },
            _ = asking.tick() => match watch.all().await {
                Ok(known) => screen.hear(known),
                Err(status) => screen.miss(&status),
            },
            _ = frames.tick() => {}
        }
    }
}

/// Keys as they are pressed; they end when the terminal does.
fn keys() -> mpsc::Receiver<KeyEvent> {
    let (sender, receiver) = mpsc::channel(KEYS);
    tokio::task::spawn_blocking(move || {
        while !sender.is_closed() {
            match event::poll(LOOK) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let pressed = match event::read() {
                Ok(Event::Key(key)) => (key.kind == KeyEventKind::Press).then_some(key),
                Ok(_) => None,
                Err(_) => return,
            };
            if pressed.is_some_and(|key| sender.blocking_send(key).is_err()) {
                return;
            }
        }
    });
    receiver
}
